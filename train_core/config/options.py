"""What the groups of parameters have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, JsonValue
from pydantic.fields import FieldInfo

MAY_CHANGE: dict[str, JsonValue] = {"may_change": True}
"""Schema of a field that can be given another value when an unfinished run is continued."""


def may_change(field: FieldInfo) -> bool:
    """Whether the field can be given another value when an unfinished run is continued."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("may_change"))


class Options(BaseModel):
    """Base of the groups of a training's parameters: frozen, and unknown names are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
