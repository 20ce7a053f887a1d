"""Translation of constraints and descriptions in annotations to `msgspec.Meta`.

msgspec reads `msgspec.Meta` in `Annotated` and ignores everything else. `checked_type` rewrites a type so
that pydantic's `Field`, `annotated_types`, `Annotated[T, "text"]` and `Doc` become `Meta`, also in
lists, dicts, unions, aliases, and in the fields of dataclasses, TypedDicts, NamedTuples and structs. A class
whose fields carry such metadata is replaced by a *shadow*: a class of the same shape that is checked and
described in its place. The caller builds the values themselves with the original type.

A constraint that cannot be honoured is refused with `InvalidArgument` when the type is read, never ignored. A
type that needs no rewriting is returned unchanged, so that callers can compare by identity. No package is
imported here: metadata is recognized by its documented attributes.

Not here: pydantic models. They check and describe themselves, custom validators included.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
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
    """Return *type_* with every constraint as `msgspec.Meta`; itself if there is nothing to translate."""
    return checked_types([type_])[0]


def checked_types(types_: Sequence[Any]) -> list[Any]:
    """Translate several types together, like `checked_type`."""
    translation = _Translation()
    return [translation.rewritten(type_) for type_ in types_]


def field_default(default: Any) -> tuple[Any, dict[str, Any]]:
    """Split a default of the form `Field(...)` into its metadata and the actual default or factory."""
    if not _is_field_info(default):
        return None, {"default": default}
    if default.default_factory is not None:
        return default, {"default_factory": default.default_factory}
    undefined = default.default is Ellipsis or type(default.default).__name__ == "PydanticUndefinedType"
    return default, {} if undefined else {"default": default.default}


class _Translation:
    """The translation of some annotations. Each class is translated once; `_open` are those in progress."""

    def __init__(self) -> None:
        self._shadows: dict[Any, Any] = {}
        self._open: set[Any] = set()
        self._recursive: set[Any] = set()

    def rewritten(self, type_: Any) -> Any:
        origin = get_origin(type_)
        if origin is Annotated:
            inner, constraints = self.rewritten(type_.__origin__), _merged(type_.__metadata__)
            understood = all(isinstance(one, msgspec.Meta) for one in type_.__metadata__)
            applies = not _is_union(inner) or constraints.keys() <= _WORDS
            return (
                type_ if inner is type_.__origin__ and understood and applies else _with(inner, constraints)
            )
        if isinstance(type_, typing.NewType):
            return self._unless_same(type_, type_.__supertype__)
        if type(type_).__name__ == "TypeAliasType":
            return self._unless_same(type_, type_.__value__)
        if origin is Literal or origin is None:
            return self._class(type_)
        before = get_args(type_)
        if any(one is Ellipsis or isinstance(one, (list, str, int, bytes)) for one in before):
            return type_  # arguments that are not types
        after = tuple(self.rewritten(one) for one in before)
        if all(new is old for new, old in zip(after, before, strict=True)):
            return self._class(type_)
        if _is_union(type_):
            return Union[after]  # noqa: UP007  the members are known only now
        return origin[after[0] if len(after) == 1 else after]

    def _unless_same(self, alias: Any, meant: Any) -> Any:
        if alias in self._open:  # a recursive alias, such as that of a JSON value
            return alias
        self._open.add(alias)
        made = self.rewritten(meant)
        self._open.discard(alias)
        return alias if made is meant else made

    # Classes

    def _class(self, type_: Any) -> Any:
        if not isinstance(type_, type) or get_origin(type_) is not None:
            return type_
        if hasattr(type_, "__dataclass_fields__"):
            _refuse_pydantic_checks(type_)
        elif hasattr(type_, "__pydantic_validator__"):  # a model checks and describes itself
            return type_
        fields = _fields_of(type_)
        if fields is None:
            return type_
        if type_ in self._open:
            self._recursive.add(type_)
            return type_
        if type_ not in self._shadows:
            self._open.add(type_)
            after = {name: self.rewritten(hint) for name, hint in fields.items()}
            same = all(after[name] is hint for name, hint in fields.items())
            if not same and type_ in self._recursive:
                raise InvalidArgument(
                    f"{type_.__name__} refers to itself, so its constraints cannot be honoured",
                    hint="write them as msgspec.Meta, or make it a pydantic model",
                )
            self._shadows[type_] = type_ if same else _shadow_of(type_, after)
            self._open.discard(type_)
        return self._shadows[type_]


def _fields_of(cls: type) -> dict[str, Any] | None:
    """Return the annotations of a class whose fields msgspec reads; None for any other type."""
    has_fields = (
        hasattr(cls, "__dataclass_fields__")
        or issubclass(cls, msgspec.Struct)
        or typing.is_typeddict(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        or hasattr(cls, "__attrs_attrs__")
    )
    if not has_fields:
        return None
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # msgspec itself reports annotations that cannot be resolved
        return None
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not typing.ClassVar}


def _shadow_of(cls: type, fields: dict[str, Any]) -> Any:
    """Create a class of the same shape as *cls*, with these field types."""
    doc = cls.__doc__
    if doc is not None:  # dataclasses and structs would generate one
        doc = None if doc.startswith(f"{cls.__name__}(") else inspect.cleandoc(doc)
    namespace = {"__doc__": doc}
    if typing.is_typeddict(cls):
        optional: frozenset[str] = cls.__optional_keys__  # type: ignore[attr-defined]
        entries = dict(fields)
        for name, hint in fields.items():
            if name in optional and get_origin(hint) not in (typing.Required, typing.NotRequired):
                entries[name] = typing.NotRequired[hint]
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
    if hasattr(cls, "__dataclass_fields__"):
        import dataclasses

        members = [
            (one.name, fields[one.name], _default(one.default, one.default_factory, dataclasses.MISSING))
            for one in dataclasses.fields(cls)  # type: ignore[arg-type]
            if one.init
        ]
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


def _default(default: Any, factory: Any, missing: Any, name: str | None = None) -> Any:
    if default is not missing:
        return msgspec.field(default=default, name=name)
    if factory is not missing:
        return msgspec.field(default_factory=factory, name=name)
    return msgspec.field(name=name)


def _refuse_pydantic_checks(cls: Any) -> None:
    """Raise `InvalidArgument` if a dataclass relies on pydantic: values of dataclasses never reach it."""
    import dataclasses  # slow to import, and few tools use one

    decorators = getattr(cls, "__pydantic_decorators__", None)
    runs_code = any(getattr(decorators, name, None) for name in _PYDANTIC_CHECKS)
    if runs_code or any(_is_field_info(one.default) for one in dataclasses.fields(cls)):
        raise InvalidArgument(
            f"the dataclass {cls.__name__} leaves checks to pydantic, which cannot be honoured",
            hint="write constraints as Annotated[type, Field(...)], or make it a pydantic model",
        )


def _is_union(type_: Any) -> bool:
    return get_origin(type_) in (Union, types.UnionType)


# Metadata


def _constraints_of(meta: Any) -> dict[str, Any]:
    """Return one piece of metadata as arguments of `msgspec.Meta`; raise if that is impossible."""
    if meta is None:
        return {}
    if isinstance(meta, str):
        return {"description": meta}
    if isinstance(meta, msgspec.Meta):
        names = (*_NUMERIC, *_SIZED, *_WORDS, "pattern", "tz")
        return {name: value for name in names if (value := getattr(meta, name)) is not None}
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
    shown = type(meta).__name__
    with contextlib.suppress(Exception):  # a user's own class may raise anything
        shown = repr(meta)[:200]
    raise InvalidArgument(f"{shown} in an annotation cannot be honoured", hint=_HINT)


def _merged(metadata: Iterable[Any]) -> dict[str, Any]:
    """Merge constraints: keep the stricter of two bounds of a kind, and the later of two descriptions."""
    found: dict[str, Any] = {}
    for name, value in (item for one in metadata for item in _constraints_of(one).items()):
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
    """Return the constraints in the attributes of metadata; None if one of them cannot be honoured."""
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


def _with(type_: Any, constraints: dict[str, Any]) -> Any:
    """Annotate *type_*, or those members of a union to which a constraint applies."""
    if not constraints:
        return type_
    if _is_union(type_):
        words = {name: value for name, value in constraints.items() if name in _WORDS}
        bounds = {name: value for name, value in constraints.items() if name not in _WORDS}
        left, members = set(bounds), []
        for member in get_args(type_):
            mine = {name: value for name, value in bounds.items() if _concerns(name, member)}
            left -= mine.keys()
            members.append(_with(member, mine))
        if left:
            raise InvalidArgument(f"{sorted(left)[0]} does not apply to any type in {type_}", hint=_HINT)
        union: Any = Union[tuple(members)]  # noqa: UP007  the members are known only now
        return Annotated[union, _made(words)] if words else union
    return Annotated[type_, _made(constraints)]


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
    """Create the `Meta`; of an open and a closed bound on the same side, keep the stricter one."""
    chosen = dict(constraints)
    for name, value in constraints.items():
        if name in _NUMERIC and isinstance(value, float) and value.is_integer():
            chosen[name] = int(value)  # msgspec accepts no float as the bound of an integer
    for open_, closed, stricter in (("gt", "ge", max), ("lt", "le", min)):
        if open_ in chosen and closed in chosen:
            keeps_open = stricter(chosen[open_], chosen[closed]) == chosen[open_]
            del chosen[closed if keeps_open else open_]
    try:
        return msgspec.Meta(**chosen)
    except (TypeError, ValueError, re.error) as error:
        raise InvalidArgument(f"a constraint in an annotation cannot be honoured: {error}") from None
