"""Encoding of values for a guest, and detection of names that refer to outside values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from standfast.errors import EngineFailed, InvalidArgument, StandfastError
from standfast.model.canonical import check_bounds, encode_json, to_json
from standfast.model.capability import Capability
from standfast.sandbox.typescript.checks import STANDARD_FUNCTIONS, touched_names
from standfast.sandbox.typescript.script import Script

MAX_FREE: Final = 200
_IDENTIFIER: Final = re.compile(r"(?<![\w$])[A-Za-z_$][\w$]*")
TYPEOF: Final = re.compile(r"\btypeof\s*\(?\s*([A-Za-z_$][\w$]*)")
_OBJECTS: Final = frozenset({
    "Array", "BigInt", "Boolean", "Date", "Error", "Infinity", "JSON", "Map", "Math", "NaN", "Number",
    "Object", "Promise", "Proxy", "RangeError", "ReferenceError", "Reflect", "RegExp", "Set", "String",
    "Symbol", "SyntaxError", "TextDecoder", "TextEncoder", "TypeError", "URL", "URLSearchParams",
    "Uint8Array", "WeakMap", "arguments", "console", "crypto", "globalThis", "performance", "result",
    "undefined",
})  # fmt: skip
"""Names that code often reads and that are never outside values, besides those of functions."""
_NO_OBJECTS: Final = ("string", "number", "integer", "boolean", "array", "null")
_Bytes: Final = (bytes, bytearray, memoryview)


def bridge_text(value: Any) -> str:
    """Encode a value for the bridge.

    The result is JSON; for bytes, `b` and one character for each byte; for a value that contains bytes, `v`
    and the JSON of a mark and the value, in which bytes are written as `{mark: characters}`.
    """
    check_bounds(value)
    if isinstance(value, _Bytes):
        return "b" + bytes(value).decode("latin-1")
    plain = _json(value)
    if not _holds_bytes(value):
        return plain
    mark = "bytes"
    while mark in plain:
        mark += "_"
    return "v" + _json([mark, _with_marks(value, mark)])


def _json(value: Any) -> str:
    try:
        return encode_json(value).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        clean, _ = to_json(value)
        return encode_json(clean).decode()


def _holds_bytes(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
        elif isinstance(item, _Bytes):
            return True
    return False


def _with_marks(value: Any, mark: str) -> Any:
    if isinstance(value, dict):
        return {key: _with_marks(item, mark) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_marks(item, mark) for item in value]
    return {mark: bytes(value).decode("latin-1")} if isinstance(value, _Bytes) else value


def bridge_inputs(inputs: dict[str, Any]) -> dict[str, str]:
    """Encode inputs for the bridge; raise `InvalidArgument` if one cannot be passed."""
    try:
        return {name: bridge_text(value) for name, value in inputs.items()}
    except InvalidArgument as error:
        raise InvalidArgument(f"an input cannot be passed: {error.message}") from None


def loaded(load: Callable[[str], Any], name: str) -> str:
    """Load an outside value and encode it for the bridge; return "" if there is none."""
    try:
        return bridge_text(load(name))
    except LookupError:
        return ""
    except StandfastError:
        raise
    except Exception as error:
        raise EngineFailed(f"{name} could not be loaded: {error}") from error


def free_names(script: Script, known: Iterable[str]) -> list[str]:
    """Return the names that the code reads and that have no known binding."""
    found = set(_IDENTIFIER.findall(script.code)) - STANDARD_FUNCTIONS - _OBJECTS - script.bound
    found.difference_update(known)
    return sorted(touched_names(script.code, found)) if found else []


def named_arguments(args: list[Any], capability: Capability) -> dict[str, Any] | None:
    """Return the arguments by name if they are passed as one object; None if they are positional."""
    # If the first parameter takes no object, an object that does not match has wrong names, which the tool
    # reports.
    schema = capability.input_schema
    if len(args) != 1 or not isinstance(args[0], dict) or schema.get("type") == "array":
        return None
    properties, required = schema.get("properties"), schema.get("required")
    names = properties if isinstance(properties, dict) else {}
    keys = args[0].keys()
    if keys <= names.keys() and keys >= set(required if isinstance(required, list) else ()):
        return args[0]
    first = next(iter(names.values()), None)
    return args[0] if isinstance(first, dict) and first.get("type") in _NO_OBJECTS else None
