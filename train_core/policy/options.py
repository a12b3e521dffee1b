"""What the groups of a training's parameters have in common.

A group that a policy decides by stands beside that policy, and is its rules: `TrainConfig` inherits
it. `train_core/config/__init__.py` lists all groups.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    create_model,
    field_validator,
)
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

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bools(cls, value: object, info: ValidationInfo) -> object:
        """Pydantic would take True for 1."""
        assert info.field_name, "it is of a field"
        annotation = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise ValueError(f"{value} is a bool, which this parameter never is")
        return value


def overrides_of(options: type[Options]) -> type[BaseModel]:
    """The same options, for a call that may set each to another value; None leaves it as it is."""
    fields: dict[str, Any] = {}
    # A type that is computed, which mypy cannot read.
    annotated: Any = Annotated
    for name, field in options.model_fields.items():
        checked = annotated[field.annotation, *field.metadata]
        fields[name] = (checked | None, Field(default=None, description=field.description))
    return create_model(
        f"{options.__name__}Overrides", __config__=ConfigDict(allow_inf_nan=False), **fields
    )
