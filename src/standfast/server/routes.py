"""The table of all routes, and how a request finds its line."""

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
    """Return the routes with those public that an operator can publish."""
    return tuple(replace(route, scope=Scope.PUBLIC) if route.publishable else route for route in routes)


class RouteTable:
    """Finds the route of a method and a path.

    A path with a parameter matches any one segment in its place.
    """

    def __init__(self, routes: Iterable[Route] = ROUTES) -> None:
        self._fixed: dict[str, dict[str, Route]] = {}
        self._open: dict[tuple[int, str], list[tuple[tuple[str, ...], dict[str, Route]]]] = {}
        for route in routes:
            parts = tuple(route.path.strip("/").split("/"))
            if "{" not in route.path:
                self._fixed.setdefault(route.path, {})[route.method] = route
                continue
            group = self._open.setdefault((len(parts), _family(parts)), [])
            found = next((methods for known, methods in group if known == parts), None)
            if found is None:
                found = {}
                group.append((parts, found))
            found[route.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        """Return the routes of a path by method, and the values of its parameters."""
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, {}
        parts = tuple(path.strip("/").split("/"))
        for known, methods in self._open.get((len(parts), _family(parts)), ()):
            values: dict[str, str] = {}
            for wanted, given in zip(known, parts, strict=True):
                if wanted.startswith("{") and given:
                    values[wanted[1:-1]] = given
                elif wanted != given:
                    break
            else:
                return methods, values
        return None


def _family(parts: tuple[str, ...]) -> str:
    """Return the segment that tells paths of one length apart: the first, or the one after `v1`."""
    return parts[1] if parts[0] == "v1" and len(parts) > 1 else parts[0]
