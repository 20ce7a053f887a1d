"""Contracts that take arguments by position, in native tool calls.

A provider sends a tool's arguments as one JSON object. A contract whose schema is an array is therefore
offered as an object with the list under `args`, and the list is taken out again before the call is checked:
from there on a native call and one that code made are the same call, with the same digest.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.capability import Capability

ARGS: Final = "args"


def is_positional(capability: Capability) -> bool:
    """Whether the contract takes its arguments by position."""
    return capability.input_schema.get("type") == "array"


def native_contract(capability: Capability) -> Capability:
    """The contract as it is offered to a model's provider: its schema is that of an object."""
    if not is_positional(capability):
        return capability
    positions = {key: value for key, value in capability.input_schema.items() if key != "$defs"}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {ARGS: {"description": "the arguments, in order", "items": {}, **positions}},
        "required": [ARGS] if positions.get("minItems", 0) else [],
        "additionalProperties": False,
    }
    if "$defs" in capability.input_schema:
        schema["$defs"] = capability.input_schema["$defs"]
    return msgspec.structs.replace(capability, input_schema=schema)


def from_native(capability: Capability, arguments: dict[str, Json]) -> list[Json]:
    """Take the arguments of a positional contract out of a native call's object."""
    args = arguments.get(ARGS, [])
    if not isinstance(args, list) or arguments.keys() - {ARGS}:
        raise InvalidArgument(
            f'{capability.name}() takes its arguments by position, as a list: {{"{ARGS}": [...]}}',
            hint=f"put every argument into {ARGS}, in order",
        )
    return args
