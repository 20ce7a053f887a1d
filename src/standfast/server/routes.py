"""The table of all routes, and the lookup of a request's route."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from standfast.server import approvals, attachments, background, code, operations, sessions, signin, turns
from standfast.server.calls import Route
from standfast.server.credentials import Scope
from standfast.server.encoders import all_routes

ROUTES: Final[tuple[Route, ...]] = (
    *sessions.ROUTES,
    *turns.ROUTES,
    *approvals.ROUTES,
    *code.ROUTES,
    *attachments.ROUTES,
    *background.ROUTES,
    *operations.ROUTES,
    *signin.ROUTES,
    *all_routes(),
)


def published(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return *routes* with the publishable ones made public."""
    return tuple(replace(route, scope=Scope.PUBLIC) if route.publishable else route for route in routes)


class _Segment:
    """A segment of the routes' paths: the segments that can follow it, and the routes that end at it."""

    __slots__ = ("fixed", "methods", "name", "value")

    def __init__(self) -> None:
        self.fixed: dict[str, _Segment] = {}
        self.value: _Segment | None = None
        """The next segment if it is the parameter `name`."""
        self.name = ""
        self.methods: dict[str, Route] = {}


class RouteTable:
    """Finds the route of a method and a path.

    A path parameter matches any one segment; a literal segment takes precedence.
    """

    def __init__(self, routes: Iterable[Route] = ROUTES) -> None:
        self._root = _Segment()
        for route in routes:
            place = self._root
            for part in _segments(route.path):
                if not part.startswith("{"):
                    place = place.fixed.setdefault(part, _Segment())
                    continue
                if place.value is None:
                    place.value, place.name = _Segment(), part[1:-1]
                if place.name != part[1:-1]:
                    raise ValueError(f"{route.path}: other routes call this parameter {place.name!r}")
                place = place.value
            place.methods[route.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        """Return the routes of a path by method, and the values of its parameters."""
        return _find(self._root, _segments(path), 0, {})


def _find(
    place: _Segment, parts: list[str], at: int, values: dict[str, str]
) -> tuple[dict[str, Route], dict[str, str]] | None:
    while at < len(parts):
        part = parts[at]
        at += 1
        fixed = place.fixed.get(part)
        if fixed is not None and place.value is not None:  # either may lead to a route
            found = _find(fixed, parts, at, dict(values))
            if found is not None:
                return found
            fixed = None
        if fixed is not None:
            place = fixed
        elif place.value is not None and part:
            values[place.name] = part
            place = place.value
        else:
            return None
    return (place.methods, values) if place.methods else None


def _segments(path: str) -> list[str]:
    return path.removeprefix("/").split("/")
