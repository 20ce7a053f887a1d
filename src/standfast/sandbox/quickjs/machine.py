"""The compiled guest, and guests made of it."""

from __future__ import annotations

from standfast.sandbox.quickjs import module_cache
from standfast.sandbox.quickjs.build import build_id
from standfast.sandbox.quickjs.guest import Guest
from standfast.sandbox.quickjs.guest_imports import Imports, new_engine


class Machine(Imports):
    """The guest with the prelude, from the cache or made anew. There is one in a process."""

    def __init__(self) -> None:
        engine = new_engine()
        known = module_cache.load(engine, build_id())
        if known is None:
            from standfast.sandbox.quickjs.booting import booted

            known = booted(engine)
            module_cache.store(build_id(), *known)
        module, self.boot = known
        super().__init__(engine, module)

    def guest(self, max_bytes: int) -> Guest:
        """A new guest, which has run nothing but the prelude."""
        return Guest(self, self.boot, max_bytes)
