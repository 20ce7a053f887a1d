"""Pins: an MCP server's state when it was trusted, and the differences since.

A pin is a file in the data directory. It records how the server is started and the contract of each of its
tools, so a session opens without starting the server. Rule: if a server differs from its pin, nothing on it
is called until a person has reviewed the difference.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from standfast.errors import NotConfigured
from standfast.mcp.contracts import AdvertisedTool, clean_text
from standfast.model.canonical import digest_json

_MAX_CHANGES: Final = 20
_MAX_PIN_BYTES: Final = 64 << 20


class Pin(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How a server is reached (`launch`), and what it advertises. `protocol` is the revision it speaks."""

    launch: dict[str, Any]
    tools: tuple[AdvertisedTool, ...] = ()
    features: tuple[str, ...] = ()
    protocol: str = ""
    left_out: tuple[str, ...] | None = None
    """The tools that cannot be offered; None if they have not been examined yet."""

    @cached_property
    def digest(self) -> str:
        """The digest of everything that a server may not change by itself."""
        return digest_json([self.launch, {tool.name: tool.digest() for tool in self.tools}, self.features])

    def examined(self) -> Pin:
        """Return this pin with `left_out` filled in."""
        if self.left_out is not None:
            return self
        left_out = tuple(tool.name for tool in self.tools if tool.problem() is not None)
        return msgspec.structs.replace(self, left_out=left_out)

    def changes(self, now: Pin) -> tuple[str, ...]:
        """Describe how *now* differs from this pin, up to twenty differences."""
        found = [
            f"{key} was {self.launch.get(key)!r}, and is now {now.launch.get(key)!r}"
            for key in sorted({*self.launch, *now.launch})
            if self.launch.get(key) != now.launch.get(key)
        ]
        before, after = ({tool.name: tool for tool in pin.tools} for pin in (self, now))
        for name in sorted({*before, *after}):
            old, new = before.get(name), after.get(name)
            shown = repr(clean_text(name, 80))
            if old is None and new is not None:
                found.append(f"tool {shown} is new: {clean_text(new.description, 200)!r}")
            elif new is None:
                found.append(f"tool {shown} is gone")
            elif old is not None and old.digest() != new.digest():
                fields = [one for one in old.__struct_fields__ if getattr(old, one) != getattr(new, one)]
                words = " and ".join(one.replace("_", " ") for one in fields)
                if "description" in fields:
                    words += f"; the description was {clean_text(old.description, 200)!r}"
                    words += f", and is now {clean_text(new.description, 200)!r}"
                found.append(f"tool {shown} has changed its {words}")
        if self.features != now.features:
            before_it, after_it = (" and ".join(one.features) or "neither" for one in (self, now))
            found.append(f"of prompts and resources it offered {before_it}, and now offers {after_it}")
        cut = [*found[:_MAX_CHANGES], f"and {len(found) - _MAX_CHANGES} more"]
        return tuple(cut if len(found) > _MAX_CHANGES else found)


class PinFile:
    """The pin of one server, in `mcp/NAME.json` of a data directory."""

    def __init__(self, data_dir: Path, server: str) -> None:
        self.path = data_dir / "mcp" / f"{server}.json"

    def read(self) -> Pin | None:
        """Return the pin, None if the server was never trusted here."""
        try:
            with self.path.open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_PIN_BYTES), type=Pin)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NotConfigured(f"the pin {self.path} cannot be read: {error.strerror or error}") from None
        except msgspec.DecodeError as error:
            raise NotConfigured(
                f"the pin {self.path} is damaged: {error}", hint="delete it, and trust the server again"
            ) from None

    def write(self, pin: Pin) -> None:
        """Replace the pin atomically."""
        write_private(self.path, msgspec.json.encode(pin))

    def remove(self) -> bool:
        """Delete the pin; return False if there was none."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True


def write_private(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file atomically, readable only by its owner; without *replace*, keep an existing one."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            draft.replace(path)
            return
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    except OSError as error:
        raise NotConfigured(f"{path} cannot be written: {error.strerror or error}") from None
