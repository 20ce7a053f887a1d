"""Where tools come from: the port of a source, and a source over tools that are at hand.

Rule: what a source answers is checked before anyone believes it; a source that fails is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from standfast.errors import BadToolSource, InvalidArgument, StandfastError, ToolNameTaken
from standfast.model.capability import SideEffect, ToolAvailability, ToolManifest
from standfast.tools.registered_tool import RegisteredTool

T = TypeVar("T")

ASKED: Final[ContextVar[list[tuple[str, str]] | None]] = ContextVar("standfast_asked_source", default=None)
"""Where a source may block: takes the name and the method of the source that is asked, until it answers."""


class ToolProvider(Protocol):
    """A source of tools: it lists them cheaply and makes one whole when it is needed."""

    def manifests(self) -> Sequence[ToolManifest]:
        """Every tool of this source, without its schemas."""
        ...

    def resolve(self, name: str) -> RegisteredTool | None:
        """A tool's contract with the handler that carries it out; `None` if there is no such tool."""
        ...


class StaticTools:
    """A source over tools that are whole already: those of an agent or of a plugin."""

    def __init__(
        self,
        tools: Iterable[RegisteredTool],
        prefix: str = "",
        *,
        availability: ToolAvailability = ToolAvailability.SHOWCASED,
    ) -> None:
        self._prefix, self._availability = prefix, availability
        self._tools: dict[str, RegisteredTool] = {}
        for tool in tools:
            self._add(tool)

    def manifests(self) -> Sequence[ToolManifest]:
        return [self._manifest(tool) for tool in self._tools.values()]

    def resolve(self, name: str) -> RegisteredTool | None:
        return self._tools.get(name)

    def _add(self, tool: RegisteredTool) -> None:
        if not isinstance(tool, RegisteredTool):
            raise InvalidArgument(f"{type(tool).__name__} is no tool", hint="as_registered() makes one of it")
        if (other := self._tools.get(tool.name)) is not None:
            raise ToolNameTaken(tool.name, other.owner, tool.owner)
        self._tools[tool.name] = tool

    def _manifest(self, tool: RegisteredTool) -> ToolManifest:
        return ToolManifest(
            id=f"{self._prefix}{tool.name}",
            name=tool.name,
            description=tool.capability.description,
            side_effect=tool.capability.side_effect,
            availability=self._availability,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One tool as one source advertised it at one time. `claimant` names the source in messages.

    Two listings of the same tool are two bindings: what was resolved under one is not used under the other.
    """

    manifest: ToolManifest
    provider: ToolProvider
    claimant: str


def bindings_of(claimant: str, provider: ToolProvider) -> list[Binding]:
    """What a provider lists, checked."""
    listed = _answer(claimant, "manifests()", lambda: list(provider.manifests()))
    return [Binding(_checked(claimant, manifest), provider, claimant) for manifest in listed]


def resolve_binding(binding: Binding) -> RegisteredTool:
    """The tool behind a binding, if its source still has it and it is what was advertised."""
    manifest, claimant = binding.manifest, binding.claimant
    tool = _answer(claimant, f"resolve({manifest.name!r})", lambda: binding.provider.resolve(manifest.name))
    if tool is None:
        raise BadToolSource(claimant, f"lists the tool {manifest.name!r} and cannot resolve it")
    if not isinstance(tool, RegisteredTool) or tool.name != manifest.name:
        raise BadToolSource(claimant, f"resolves {manifest.name!r} to {_described(tool)}")
    if tool.capability.side_effect != manifest.side_effect:
        real = str(tool.capability.side_effect)
        raise BadToolSource(
            claimant,
            f"lists {manifest.name!r} with side effect {str(manifest.side_effect)!r}, it has {real!r}",
        )
    return tool


def _answer(claimant: str, method: str, ask: Callable[[], T]) -> T:
    asked = ASKED.get()
    if asked is not None:
        asked.append((claimant, method))
    try:
        answer = ask()
    except (Exception, SystemExit) as error:
        raise BadToolSource(claimant, f"failed in {method}: {_described_error(error)}") from error
    if asked is not None:
        asked.clear()
    return answer


def _checked(claimant: str, manifest: object) -> ToolManifest:
    """Types are checked by hand: a struct that was made in Python accepts any value."""
    if not isinstance(manifest, ToolManifest):
        raise BadToolSource(claimant, f"lists {_described(manifest)}, which is no manifest")
    fits = (
        isinstance(manifest.id, str)
        and isinstance(manifest.description, str)
        and isinstance(manifest.side_effect, SideEffect)
        and isinstance(manifest.availability, ToolAvailability)
    )
    if not fits:
        raise BadToolSource(claimant, f"lists {manifest.name!r} with fields of the wrong type")
    return manifest


def _described(answer: object) -> str:
    return f"tool {answer.name!r}" if isinstance(answer, RegisteredTool) else f"a {type(answer).__name__}"


def _described_error(error: BaseException) -> str:
    if isinstance(error, StandfastError):
        return str(error)
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:  # its own __str__ raises
        return type(error).__name__
