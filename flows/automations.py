"""Prefect's automations from a file that may be applied again: by its name, each is there once.

`prefect automation create` makes another one of the same name each time, and knows no blocks.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from prefect.blocks import notifications
from prefect.blocks.core import Block
from prefect.client.orchestration import PrefectClient, get_client
from prefect.events.schemas.automations import AutomationCore
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from train_core.errors import ConfigError

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class NamedBlock(BaseModel):
    """A block, such as a webhook of Slack's, that actions refer to by its name."""

    model_config = ConfigDict(extra="forbid")

    name: str
    type: str
    """Prefect's slug of its type: `slack-webhook`, `sendgrid-email`, `custom-webhook`, …"""
    data: dict[str, Any]
    """The fields of that type. `${NAME}` is the environment's variable: a file has no secrets."""


class AutomationsFile(BaseModel):
    """The content of a file."""

    model_config = ConfigDict(extra="forbid")

    blocks: list[NamedBlock] = []
    automations: list[dict[str, Any]] = Field(min_length=1)
    """As `prefect automation create` takes them; an action names its block as `block: NAME`."""


def apply_file(path: str) -> list[str]:
    """Create or update all that the file names; a line for each.

    An automation that was paused on the server stays so. Raises ConfigError if the file cannot be
    used, before anything is sent.
    """
    try:
        found = AutomationsFile.model_validate(yaml.safe_load(Path(path).read_text()))
        blocks = {one.name: _block(one) for one in found.blocks}
        for one in found.automations:
            _core(one, dict.fromkeys(blocks, "0" * 32))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read: {said}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {error.title} {place}: {first['msg']}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return asyncio.run(_apply(found, blocks))


async def _apply(found: AutomationsFile, blocks: Mapping[str, Block]) -> list[str]:
    done, ids = [], {}
    async with get_client() as client:
        for name, block in blocks.items():
            ids[name] = str(await block.asave(name, overwrite=True, client=client))
            done.append(f"block {name}: saved")
        done += [await _apply_one(client, one, ids) for one in found.automations]
    return done


async def _apply_one(client: PrefectClient, one: dict[str, Any], ids: Mapping[str, str]) -> str:
    core = _core(one, ids)
    there = await client.read_automations_by_name(core.name)
    if not there:
        await client.create_automation(core)
        return f"automation {core.name}: created"
    first, *doubles = there
    # Prefect sends the fields that are set here only, and its server refuses this one in an update.
    asked = core.model_dump(mode="json", exclude={"owner_resource"}) | {"enabled": first.enabled}
    await client.update_automation(first.id, AutomationCore.model_validate(asked))
    for double in doubles:
        await client.delete_automation(double.id)
    return f"automation {core.name}: updated" + (" and its doubles deleted" if doubles else "")


def _block(one: NamedBlock) -> Block:
    types = {kind.get_block_type_slug(): kind for kind in _types()}
    if one.type not in types:
        raise ConfigError(
            f"block {one.name!r} has the unknown type {one.type!r}: Prefect has {', '.join(types)}"
        )
    try:
        return types[one.type].model_validate(_filled(one.data))
    # The library that sends them checks addresses in its own words.
    except TypeError as error:
        raise ConfigError(f"block {one.name!r}: {error}") from error


def _types() -> Iterator[type[Block]]:
    for kind in vars(notifications).values():
        if isinstance(kind, type) and issubclass(kind, Block) and "_block_type_name" in vars(kind):
            yield kind


def _filled(value: Any) -> Any:
    """The value with the environment's variables in the places of their names."""
    if isinstance(value, dict):
        return {key: _filled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one) for one in value]
    return _VARIABLE.sub(_variable, value) if isinstance(value, str) else value


def _variable(name: re.Match[str]) -> str:
    value = os.environ.get(name[1])
    if not value:
        raise ConfigError(f"the environment has no {name[1]}, which the file asks for: export it")
    return value


def _core(one: Mapping[str, Any], ids: Mapping[str, str]) -> AutomationCore:
    actions = []
    for action in one.get("actions", ()):
        made = dict(action)
        if block := made.pop("block", ""):
            if block not in ids:
                raise ConfigError(f"automation {one.get('name')!r} names no block of it: {block!r}")
            made["block_document_id"] = ids[block]
        actions.append(made)
    return AutomationCore.model_validate({**one, "actions": actions})
