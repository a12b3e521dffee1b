"""The names of registered models, and the addresses `models:/…` that people write."""

from __future__ import annotations

import re
from dataclasses import dataclass

CHAMPION = "champion"
CHALLENGER = "challenger"
_MAX_LENGTH = 128
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_MAX_LENGTH - 1}}}")
_OTHER = re.compile(r"[^A-Za-z0-9._-]+|\.\.+")
_ADDRESS = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<version>[0-9]{1,8})|@(?P<alias>[^/@]+))")


def is_model_name(text: str) -> bool:
    """Whether MLflow and every storage take it as a registered model's name."""
    return _NAME.fullmatch(text) is not None and ".." not in text


def check_model_name(name: str) -> str:
    """`name`, if MLflow and every storage take it. Raises ValueError."""
    if not is_model_name(name):
        raise ValueError(
            f"{name!r} cannot be a registered model: take letters, digits, '.', '_' and '-', "
            f"beginning with a letter or digit, at most {_MAX_LENGTH} of them, without '..'"
        )
    return name


def default_model_name(workload: str) -> str:
    """The class, or the function, of `package.module:Name`, as far as a name may have it."""
    name = _OTHER.sub("-", workload.rpartition(":")[2])
    return name.lstrip("._-")[:_MAX_LENGTH] or "model"


@dataclass(frozen=True)
class ModelAddress:
    """`models:/NAME/VERSION` or `models:/NAME@ALIAS`."""

    name: str
    version: int | None = None
    alias: str = ""

    @classmethod
    def parse(cls, text: str) -> ModelAddress | None:
        """The address, or None if `text` is none."""
        match = _ADDRESS.fullmatch(text)
        if match is None or not is_model_name(match["name"]):
            return None
        version = int(match["version"]) if match["version"] else None
        return cls(match["name"], version, match["alias"] or "")
