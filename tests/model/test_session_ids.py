"""Every value of the package that has a session id validates it, however it is decoded."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Final

import msgspec
import pytest
from msgspec import inspect

import standfast
from standfast.errors import InvalidSessionId

IDS: Final = ("session_id", "parent_session_id", "forked_from")
"""The names of fields that hold a session id."""
GOOD: Final = "agent-123_ok"
IN_MEMORY: Final = {
    "DepsContext", "FinishedTurn", "FrameSwitchedTurn", "Lease", "ModelRequest", "PluginActionContext",
    "ProtocolSessionContext", "SessionBuild", "SessionConfigChanged", "SessionLine", "SessionReadView",
    "SessionRestored", "SessionRow", "SessionSetup", "StoppedTurn", "SubagentContext", "TracedTurn",
    "TurnFinalized", "TurnPersisted", "EnclosingSpan", "WaitingTurn", "SessionWork", "WriteScope",
    "_TurnFacts",
}  # fmt: skip
"""Values that are made from validated ones in the same process, and are never decoded."""
BAD: Final = ("bad/slash", "a\n", "x" * 65, "é", "../x", "a\0")


def _structs() -> list[type[msgspec.Struct]]:
    """Return every Struct of the package."""
    for module in pkgutil.walk_packages(standfast.__path__, "standfast."):
        if ".cpython.guest" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[msgspec.Struct]] = [msgspec.Struct]
    for one in found:
        found += one.__subclasses__()
    return sorted(
        {one for one in found if one.__module__.startswith("standfast.")},
        key=lambda one: (one.__module__, one.__qualname__),
    )


def _holders() -> list[tuple[type[msgspec.Struct], str]]:
    """Return the Structs that can be decoded, with each field that holds a session id."""
    return [
        (one, name)
        for one in _structs()
        for name in IDS
        if name in one.__struct_fields__
        and one.__name__ not in IN_MEMORY
        and one.__module__ != "standfast.plugins.contexts"  # passed to hooks, never decoded
        and _is_plain(one)
    ]


def _is_plain(kind: type[msgspec.Struct]) -> bool:
    """Return whether values of the type are pure data: others are never stored or sent."""
    try:
        _sample(inspect.type_info(kind))
    except (NameError, NotImplementedError, TypeError):  # it holds objects of the runtime
        return False
    return True


def _sample(kind: inspect.Type) -> Any:
    """Return JSON that can be decoded as *kind*, with every field of a struct that has no default."""
    match kind:
        case inspect.Metadata(type=inner):
            return _sample(inner)
        case inspect.StrType(pattern=pattern):
            return "a1" if pattern is None or "64" in pattern else "a"
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return True
        case inspect.NoneType() | inspect.AnyType():
            return None
        case inspect.BytesType():
            return ""
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.UnionType(types=types):
            return _sample(types[0])
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return []
        case inspect.TupleType(item_types=items):
            return [_sample(one) for one in items]
        case inspect.DictType():
            return {}
        case inspect.StructType(fields=fields, tag=tag, tag_field=tag_field):
            made = {field.encode_name: _sample(field.type) for field in fields if field.required}
            return made if tag_field is None else {tag_field: tag, **made}
        case _:
            raise NotImplementedError(kind)


@pytest.mark.parametrize(("kind", "field"), _holders(), ids=lambda one: getattr(one, "__name__", one))
@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
def test_decoding_a_value_with_a_session_id_validates_the_id(
    kind: type[msgspec.Struct], field: str, codec: Any
) -> None:
    """Bug: turns, segments, leases, requests and trace records were decoded with any string as an id."""
    given = _sample(inspect.type_info(kind))
    decoded = codec.decode(codec.encode({**given, **_ids(kind), field: GOOD}), type=kind)
    assert getattr(decoded, field) == GOOD
    for value in BAD:
        with pytest.raises(InvalidSessionId):
            codec.decode(codec.encode({**given, **_ids(kind), field: value}), type=kind)


def _ids(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the ids that the type requires, all valid."""
    return {
        field.encode_name: GOOD
        for field in msgspec.structs.fields(kind)
        if field.name in IDS and field.required
    }


def test_stored_and_sent_values_are_among_those_found() -> None:
    """Ours: the search must not be empty."""
    found = {kind.__name__ for kind, _ in _holders()}
    assert found >= {
        "Approval", "AssembledTurn", "FromSession", "PruneRequest", "QueuedInput", "RunRequest",
        "Segment", "SessionCharter", "SessionCreateRequest", "SessionHandle", "SessionHead", "SessionRequest",
        "TaskRecord", "TraceRecord", "Trigger", "TurnBegan", "TurnRecord",
    }  # fmt: skip


def test_a_trace_record_without_a_session_is_decoded() -> None:
    """Ours: records without a session are traced, too."""
    kind = next(one for one in _structs() if one.__name__ == "TraceRecord")
    assert msgspec.json.decode(b'{"at_ms": 1, "name": "x"}', type=kind).session_id == ""  # type: ignore[attr-defined]
