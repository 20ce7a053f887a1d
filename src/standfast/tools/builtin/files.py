"""The tools for files on mounts: `read_text`, `write_text`, `list_dir`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from standfast.errors import Code, ToolError
from standfast.model.limits import CapabilityLimits
from standfast.tools.builtin.mounts import MountTable
from standfast.tools.decorator import built_in, tool
from standfast.tools.registered_tool import RegisteredTool

_CHUNK_BYTES = 1 << 16


def file_tools(table: MountTable, *, limits: CapabilityLimits | None = None) -> list[RegisteredTool]:
    """Return the file tools of a mount table; without a writable mount there is no `write_text`."""
    limits = limits or CapabilityLimits()

    @tool(side_effect="read", limits=limits)
    def read_text(path: str) -> str:
        """Read a UTF-8 text file.

        Args:
            path: absolute path of the file, below one of the mounts; list_dir("/") shows them.
        """
        return _text_of(table, path, limits.max_response_bytes)

    @tool(side_effect="read", limits=limits)
    def list_dir(path: str = "/") -> list[str]:
        """List the names in a directory, sorted; directories end in "/".

        Args:
            path: absolute path of the directory; "/" shows the mounts.
        """
        return sorted(_names_in(table, path, limits.max_response_bytes))

    @tool(side_effect="write", idempotent=True, limits=limits)
    def write_text(path: str, text: str) -> int:
        """Write a text file as UTF-8, replacing its contents. Returns the number of bytes written.

        Args:
            path: absolute path of the file, below a writable mount; its directory must exist.
            text: the whole new content.
        """
        data = text.encode()
        with table.open_to_write(path, len(data)) as file, os.fdopen(file, "wb", closefd=False) as stream:
            stream.write(data)
        return len(data)

    return built_in(read_text, list_dir, *([write_text] if table.writable else []))


def _text_of(table: MountTable, path: str, max_bytes: int) -> str:
    with table.open_to_read(path) as file:
        if (size := os.fstat(file).st_size) > max_bytes:
            raise _too_large(path, f"it has {size} bytes, the limit is {max_bytes}")
        data = bytearray()
        while chunk := os.read(file, _CHUNK_BYTES):
            data += chunk
            if len(data) > max_bytes:  # it grew, or is a file that reports no size
                raise _too_large(path, f"it has more than {max_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        what = f"{path} is not UTF-8 text: byte {error.start} cannot be decoded"
        raise ToolError(Code.TOOL_ERROR, what, hint="read_text reads text files only") from None


def _names_in(table: MountTable, path: str, max_bytes: int) -> Iterator[str]:
    size = 0
    for name, is_directory in table.entries(path):
        size += len(name) + 3
        if size > max_bytes:
            raise _too_large(path, f"its list is over {max_bytes} bytes")
        yield name + "/" if is_directory else name


def _too_large(path: str, why: str) -> ToolError:
    return ToolError(Code.RESPONSE_TOO_LARGE, f"{path} is too large to return: {why}")
