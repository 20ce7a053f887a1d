"""Constraints and descriptions in annotations, translated to what msgspec checks and describes.

Theory of operation
-------------------
msgspec reads `msgspec.Meta` in `Annotated` and ignores everything else. `checked_type` rewrites a type so
that pydantic's `Field`, `annotated_types`, `Annotated[T, "text"]` and `Doc` become `Meta`, also in
lists, dicts, unions, aliases, and in the fields of dataclasses, TypedDicts, NamedTuples and structs. A class
whose fields carry such metadata is replaced by a *shadow*: a class of the same shape that is checked and
described in its place. The caller builds the values themselves with the original type.

Rules
-----
1. What cannot be honoured is refused when the type is read (`InvalidArgument`), never ignored.
2. A type that needs no rewriting is returned as it is, so that callers can tell by identity.
3. No package is imported here: metadata is recognised by the attributes that its package documents.

Not here: pydantic models. They check and describe themselves, custom validators included.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypedDict, Union, get_args, get_origin

import msgspec

from standfast.errors import InvalidArgument

_LOWER: Final = ("gt", "ge", "min_length")
_UPPER: Final = ("lt", "le", "max_length")
_NUMERIC: Final = frozenset({"gt", "ge", "lt", "le", "multiple_of"})
_SIZED: Final = frozenset({"min_length", "max_length"})
_WORDS: Final = frozenset({"title", "description", "examples", "extra_json_schema", "extra"})
_CONTAINERS: Final = (list, tuple, set, frozenset, dict, bytes, bytearray)

_PYDANTIC_CHECKS: Final = ("validators", "field_validators", "root_validators", "model_validators")

_HINT: Final = (
    "check it in the function, or take a pydantic model, whose validators run; "
    "bounds, lengths, patterns and descriptions are understood"
)


def checked_type(type_: Any) -> Any:
    """Return *type_* with every constraint as `msgspec.Meta`; itself if there is nothing to translate.

    Raise `InvalidArgument` if it carries metadata that cannot be honoured.
    """
    return checked_types([type_])[0]


def checked_types(types_: Sequence[Any]) -> list[Any]:
    """Do the same for several types that are described together."""
    translation = _Translation()
    return [translation.rewritten(type_) for type_ in types_]


def field_default(default: Any) -> tuple[Any, dict[str, Any]]:
    """Split a parameter's default into the metadata of `= Field(...)` and its default, or how to make it."""
    if not _is_field_info(default):
        return None, {"default": default}
    if default.default_factory is not None:
        return default, {"default_factory": default.default_factory}
    if _is_undefined(default.default):
        return default, {}
    return default, {"default": default.default}


class _Translation:
    """The translation of some annotations. Classes are translated once; `_open` are those under way."""

    def __init__(self) -> None:
        self._shadows: dict[Any, Any] = {}
        self._open: set[Any] = set()
        self._recursive: set[Any] = set()

    def rewritten(self, type_: Any) -> Any:
        origin = get_origin(type_)
        if origin is Annotated:
            return self._annotated(type_)
        if isinstance(type_, typing.NewType):
            return self._unless_same(type_, type_.__supertype__)
        if type(type_).__name__ == "TypeAliasType":
            return self._unless_same(type_, type_.__value__)
        if origin is Literal or origin is None:
            return self._class(type_)
        return self._generic(type_, origin)

    def _unless_same(self, alias: Any, meant: Any) -> Any:
        if alias in self._open:  # an alias that names itself, such as that of any JSON value
            return alias
        self._open.add(alias)
        made = self.rewritten(meant)
        self._open.discard(alias)
        return alias if made is meant else made

    def _generic(self, type_: Any, origin: Any) -> Any:
        before = get_args(type_)
        if not all(_is_type(one) for one in before):
            return type_
        after = tuple(self.rewritten(one) for one in before)
        if all(new is old for new, old in zip(after, before, strict=True)):
            return self._class(type_)
        if _is_union(type_):
            return Union[after]  # noqa: UP007  the members are known only now
        return origin[after[0] if len(after) == 1 else after]

    def _annotated(self, type_: Any) -> Any:
        inner = self.rewritten(type_.__origin__)
        constraints = _merged(type_.__metadata__)
        understood = all(isinstance(one, msgspec.Meta) for one in type_.__metadata__)
        if (
            inner is type_.__origin__
            and understood
            and (not _is_union(inner) or constraints.keys() <= _WORDS)
        ):
            return type_
        return _with(inner, constraints)

    # Classes

    def _class(self, type_: Any) -> Any:
        if not isinstance(type_, type) or get_origin(type_) is not None or _is_pydantic_model(type_):
            return type_
        if dataclasses.is_dataclass(type_):
            _refuse_pydantic_checks(type_)
        fields = _fields_of(type_)
        if fields is None:
            return type_
        if type_ in self._open:
            self._recursive.add(type_)
            return type_
        if type_ not in self._shadows:
            self._open.add(type_)
            self._shadows[type_] = self._shadow(type_, fields)
            self._open.discard(type_)
        return self._shadows[type_]

    def _shadow(self, cls: type, before: Mapping[str, Any]) -> Any:
        after = {name: self.rewritten(hint) for name, hint in before.items()}
        if all(after[name] is hint for name, hint in before.items()):
            return cls
        if cls in self._recursive:
            raise InvalidArgument(
                f"{cls.__name__} refers to itself, so the constraints in its annotations cannot be honoured",
                hint="write them as msgspec.Meta, or make it a pydantic model",
            )
        return _shadow_of(cls, after)


def _fields_of(cls: type) -> dict[str, Any] | None:
    """Return the annotations of a class whose fields msgspec reads; None for any other type."""
    has_fields = (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, msgspec.Struct)
        or typing.is_typeddict(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        or hasattr(cls, "__attrs_attrs__")
    )
    if not has_fields:
        return None
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # msgspec reports annotations that cannot be resolved, in words of its own
        return None
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not typing.ClassVar}


def _shadow_of(cls: type, fields: dict[str, Any]) -> Any:
    """Make a class of the same shape as *cls* with these field types."""
    namespace = {"__doc__": _doc_of(cls)}
    if typing.is_typeddict(cls):
        optional: frozenset[str] = cls.__optional_keys__  # type: ignore[attr-defined]
        entries = {name: _entry(hint, name in optional) for name, hint in fields.items()}
        made = _typed_dict(cls.__name__, entries)
        made.__doc__, made.__module__ = namespace["__doc__"], cls.__module__
        return made
    if issubclass(cls, tuple):
        made = _named_tuple(cls.__name__, list(fields.items()))
        made.__new__.__defaults__ = tuple(cls._field_defaults.values())  # type: ignore[attr-defined]
        made._field_defaults = cls._field_defaults  # type: ignore[attr-defined]
        made.__module__ = cls.__module__
        return made
    if issubclass(cls, msgspec.Struct):
        return _shadow_struct(cls, fields, namespace)
    if dataclasses.is_dataclass(cls):
        members = [_member(one, fields) for one in dataclasses.fields(cls) if one.init]
        return msgspec.defstruct(
            cls.__name__, members, kw_only=True, namespace=namespace, module=cls.__module__
        )
    raise InvalidArgument(
        f"the constraints in the annotations of {cls.__name__} cannot be honoured",
        hint="make it a dataclass or a pydantic model",
    )


_named_tuple: Final[Any] = NamedTuple
_typed_dict: Final[Any] = TypedDict
"""Called as functions, which type checkers take for declarations."""


def _shadow_struct(cls: type[msgspec.Struct], fields: dict[str, Any], namespace: dict[str, Any]) -> Any:
    config = cls.__struct_config__
    members: list[Any] = []
    for one in msgspec.structs.fields(cls):
        default = _default(one.default, one.default_factory, msgspec.NODEFAULT, one.encode_name)
        members.append((one.name, fields[one.name], default))
    return msgspec.defstruct(
        cls.__name__,
        members,
        kw_only=not config.array_like,
        array_like=config.array_like,
        forbid_unknown_fields=config.forbid_unknown_fields,
        tag=config.tag,
        tag_field=config.tag_field,
        namespace=namespace,
        module=cls.__module__,
    )


def _member(one: dataclasses.Field[Any], fields: dict[str, Any]) -> tuple[str, Any, Any]:
    return one.name, fields[one.name], _default(one.default, one.default_factory, dataclasses.MISSING)


def _default(default: Any, factory: Any, missing: Any, name: str | None = None) -> Any:
    if default is not missing:
        return msgspec.field(default=default, name=name)
    if factory is not missing:
        return msgspec.field(default_factory=factory, name=name)
    return msgspec.field(name=name)


def _entry(hint: Any, optional: bool) -> Any:
    """A key of a TypedDict; one that says itself whether it is required stays so."""
    if get_origin(hint) in (typing.Required, typing.NotRequired):
        return hint
    return typing.NotRequired[hint] if optional else hint


def _doc_of(cls: type) -> str | None:
    """The docstring that somebody wrote; dataclasses and structs make one up."""
    text = cls.__doc__
    return None if text is None or text.startswith(f"{cls.__name__}(") else inspect.cleandoc(text)


def _is_pydantic_model(type_: type) -> bool:
    """Whether pydantic checks and describes values of this class by itself."""
    return hasattr(type_, "__pydantic_validator__") and not dataclasses.is_dataclass(type_)


def _refuse_pydantic_checks(cls: Any) -> None:
    """Raise `InvalidArgument` if a dataclass relies on pydantic: values of dataclasses never reach it."""
    decorators = getattr(cls, "__pydantic_decorators__", None)
    runs_code = any(getattr(decorators, name, None) for name in _PYDANTIC_CHECKS)
    if runs_code or any(_is_field_info(one.default) for one in dataclasses.fields(cls)):
        raise InvalidArgument(
            f"the dataclass {cls.__name__} leaves checks to pydantic, which cannot be honoured",
            hint="write constraints as Annotated[type, Field(...)], or make it a pydantic model",
        )


def _is_union(type_: Any) -> bool:
    return get_origin(type_) in (Union, types.UnionType)


def _is_type(candidate: Any) -> bool:
    """Whether an argument of a generic type is a type itself, and not a value or a list of parameters."""
    return candidate is not Ellipsis and not isinstance(candidate, (list, str, int, bytes))


# Metadata


def _constraints_of(meta: Any) -> dict[str, Any]:
    """Return one piece of metadata as arguments of `msgspec.Meta`; raise if that is impossible."""
    if meta is None:
        return {}
    if isinstance(meta, str):
        return {"description": meta}
    if isinstance(meta, msgspec.Meta):
        return {name: value for name, value in _meta_arguments(meta) if value is not None}
    if isinstance(text := getattr(meta, "documentation", None), str):
        return {"description": text}
    if _is_field_info(meta):
        return _from_field_info(meta)
    package = type(meta).__module__.partition(".")[0]
    if package == "annotated_types" or package == "pydantic":
        if getattr(meta, "__is_annotated_types_grouped_metadata__", False):
            return _merged(meta)
        if (known := _from_attributes(meta)) is not None:
            return known
    raise InvalidArgument(f"{_shown(meta)} in an annotation cannot be honoured", hint=_HINT)


def _meta_arguments(meta: msgspec.Meta) -> Iterable[tuple[str, Any]]:
    return ((name, getattr(meta, name)) for name in (*_NUMERIC, *_SIZED, *_WORDS, "pattern", "tz"))


def _merged(metadata: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in metadata:
        _merge(found, _constraints_of(one))
    return found


_HARMLESS: Final[dict[str, Callable[[Any], bool]]] = {
    "strict": lambda value: True,  # arguments are never coerced
    "allow_inf_nan": lambda value: True,  # JSON has neither
    "unit": lambda value: True,
    "fail_fast": lambda value: True,
    "func": lambda value: value is math.isfinite,
    "union_mode": lambda value: value in (None, "smart"),
}


def _from_attributes(meta: Any) -> dict[str, Any] | None:
    """Read metadata that says everything in its attributes; None if one of them cannot be honoured."""
    slots = getattr(type(meta), "__slots__", ()) or getattr(type(meta), "__dataclass_fields__", ())
    names = [*getattr(meta, "__dict__", {}), *([slots] if isinstance(slots, str) else slots)]
    found: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        value = getattr(meta, name, None)
        if value is None or (name in _HARMLESS and _HARMLESS[name](value)):
            continue
        if name in _NUMERIC or name in _SIZED:
            found[name] = value
        elif name == "pattern":
            found[name] = (
                value.pattern if isinstance(value, re.Pattern) and not value.flags & ~re.U else value
            )
        elif name == "tz" and value is Ellipsis:
            found[name] = True
        else:
            return None
    return found if names else None


def _is_field_info(value: Any) -> bool:
    return (
        hasattr(value, "metadata") and hasattr(value, "json_schema_extra") and hasattr(value, "is_required")
    )


def _is_undefined(value: Any) -> bool:
    return value is Ellipsis or type(value).__name__ == "PydanticUndefinedType"


def _from_field_info(info: Any) -> dict[str, Any]:
    for name in ("alias", "validation_alias", "discriminator"):
        if getattr(info, name, None) is not None:
            raise InvalidArgument(f"Field({name}=...) in an annotation cannot be honoured", hint=_HINT)
    found = _merged(info.metadata)
    words = {"title": info.title, "description": info.description, "examples": info.examples}
    found |= {name: value for name, value in words.items() if value is not None}
    extra = info.json_schema_extra or {}
    if callable(extra):
        raise InvalidArgument("Field(json_schema_extra=...) must be a dict in a tool's annotation")
    if info.deprecated:
        extra = {**extra, "deprecated": True}
    if extra:
        found["extra_json_schema"] = dict(extra)
    return found


def _merge(found: dict[str, Any], more: dict[str, Any]) -> None:
    """Add constraints; of two bounds of a kind the stricter one stays, of two descriptions the later one."""
    for name, value in more.items():
        before = found.get(name)
        if before is None or name in _WORDS:
            found[name] = value
        elif name in _LOWER:
            found[name] = max(before, value)
        elif name in _UPPER:
            found[name] = min(before, value)
        elif before != value:
            raise InvalidArgument(
                f"an annotation has {name} {before!r} and {value!r}", hint="keep one of them"
            )


def _with(type_: Any, constraints: dict[str, Any]) -> Any:
    """Annotate *type_*, or the members of a union that a constraint is about."""
    if not constraints:
        return type_
    if _is_union(type_):
        words = {name: value for name, value in constraints.items() if name in _WORDS}
        bounds = {name: value for name, value in constraints.items() if name not in _WORDS}
        return _with_words(_constrained_union(type_, bounds), words)
    return Annotated[type_, _made(constraints)]


def _with_words(type_: Any, words: dict[str, Any]) -> Any:
    return Annotated[type_, _made(words)] if words else type_


def _constrained_union(union: Any, bounds: dict[str, Any]) -> Any:
    left = set(bounds)
    members: list[Any] = []
    for member in get_args(union):
        mine = {name: value for name, value in bounds.items() if _concerns(name, member)}
        left -= mine.keys()
        members.append(_with(member, mine))
    if left:
        raise InvalidArgument(f"{sorted(left)[0]} does not apply to any type in {union}", hint=_HINT)
    return Union[tuple(members)]  # noqa: UP007  the members are known only now


def _concerns(constraint: str, member: Any) -> bool:
    while get_origin(member) is Annotated:
        member = member.__origin__
    if _is_union(member):
        return any(_concerns(constraint, inner) for inner in get_args(member))
    kind = get_origin(member) or member
    if constraint in _NUMERIC:
        return kind in (int, float)
    if constraint in _SIZED:
        return kind is str or (isinstance(kind, type) and issubclass(kind, _CONTAINERS))
    return kind is str if constraint == "pattern" else False


def _made(constraints: dict[str, Any]) -> msgspec.Meta:
    """Make the `Meta`; of an open and a closed bound on one side the stricter one stays."""
    chosen = {name: _whole(value) if name in _NUMERIC else value for name, value in constraints.items()}
    for open_, closed, stricter in (("gt", "ge", max), ("lt", "le", min)):
        if open_ in chosen and closed in chosen:
            keeps_open = stricter(chosen[open_], chosen[closed]) == chosen[open_]
            del chosen[closed if keeps_open else open_]
    try:
        return msgspec.Meta(**chosen)
    except (TypeError, ValueError, re.error) as error:
        raise InvalidArgument(f"a constraint in an annotation cannot be honoured: {error}") from None


def _whole(value: Any) -> Any:
    """A bound such as 5.0 as the integer that it is: msgspec takes no other for an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _shown(meta: Any) -> str:
    try:
        return repr(meta)[:200]
    except Exception:  # a user's own class may raise anything
        return type(meta).__name__
