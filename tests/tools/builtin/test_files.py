"""The file tools as guests call them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from standfast.errors import AccessDenied, ToolError
from standfast.model.capability import ToolCallContext
from standfast.model.limits import CapabilityLimits
from standfast.tools import RegisteredTool, ToolRegistry
from standfast.tools.builtin.files import file_tools
from standfast.tools.builtin.mounts import Mount, MountTable


def call(tools: list[RegisteredTool], name: str, *args: Any) -> Any:
    tool = ToolRegistry(tools).require(name)
    bound = tool.bind(ToolCallContext(name=name, args=list(args)))
    return tool.handler(*bound.args, **bound.kwargs)


@pytest.fixture
def tools(tmp_path: Path) -> list[RegisteredTool]:
    table = MountTable({"/data": Mount(str(tmp_path), writable=True)})
    return file_tools(table, limits=CapabilityLimits(max_response_bytes=100))


def test_text_is_written_and_read_back(tools: list[RegisteredTool], tmp_path: Path) -> None:
    """Seed: `read_text` and `write_text` work on mounts."""
    assert call(tools, "write_text", "/data/a.txt", "grün\r\n") == 7
    assert call(tools, "read_text", "/data/a.txt") == "grün\r\n"
    assert call(tools, "write_text", "/data/a.txt", "x") == 1
    assert (tmp_path / "a.txt").read_bytes() == b"x"


def test_a_directory_is_listed_sorted_with_directories_marked(
    tools: list[RegisteredTool], tmp_path: Path
) -> None:
    """Seed: `list_dir` works on mounts."""
    (tmp_path / "b").mkdir()
    (tmp_path / "c.txt").touch()
    (tmp_path / "a.txt").touch()
    assert call(tools, "list_dir", "/data") == ["a.txt", "b/", "c.txt"]
    assert call(tools, "list_dir") == ["data/"]


def test_write_text_exists_only_with_a_writable_mount(tmp_path: Path) -> None:
    """Seed: built-in tools are off until granted."""
    names = [tool.name for tool in file_tools(MountTable({"/data": tmp_path}))]
    assert names == ["read_text", "list_dir"]


def test_contracts_declare_the_side_effects_of_the_tools(tools: list[RegisteredTool]) -> None:
    """Ours: approval and replay follow from the declared side effect."""
    found = {tool.name: tool for tool in tools}
    effects = {name: (str(t.capability.side_effect), t.capability.idempotent) for name, t in found.items()}
    assert effects == {"read_text": ("read", True), "list_dir": ("read", True), "write_text": ("write", True)}
    assert {tool.owner for tool in tools} == {"standfast built-in"}
    properties = found["write_text"].capability.input_schema["properties"]
    assert all(properties[name]["description"] for name in ("path", "text"))


def test_a_file_above_the_limit_is_refused_before_it_is_read(
    tools: list[RegisteredTool], tmp_path: Path
) -> None:
    """Ours: a tool never reads unbounded amounts into memory."""
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ToolError, match="1099511627776 bytes, the limit is 100") as raised:
        call(tools, "read_text", "/data/huge")
    assert raised.value.code == "RESPONSE_TOO_LARGE"


def test_a_file_without_a_size_is_read_up_to_the_limit() -> None:
    """Ours: files in /proc have a size of 0 bytes."""
    tools = file_tools(MountTable({"/proc": "/proc"}), limits=CapabilityLimits(max_response_bytes=10))
    with pytest.raises(ToolError, match="more than 10 bytes"):
        call(tools, "read_text", "/proc/meminfo")


def test_a_directory_with_too_many_names_is_refused(tools: list[RegisteredTool], tmp_path: Path) -> None:
    """Ours: a listing is limited like a text."""
    for number in range(40):
        (tmp_path / f"file{number}").touch()
    with pytest.raises(ToolError) as raised:
        call(tools, "list_dir", "/data")
    assert raised.value.code == "RESPONSE_TOO_LARGE"


def test_a_file_that_is_not_text_is_reported_as_such(tools: list[RegisteredTool], tmp_path: Path) -> None:
    """Ours: guest code gets an error instead of mojibake."""
    (tmp_path / "image").write_bytes(b"ok\xff")
    with pytest.raises(ToolError, match="not UTF-8 text: byte 2"):
        call(tools, "read_text", "/data/image")


def test_a_name_that_is_not_text_does_not_break_the_listing(
    tools: list[RegisteredTool], tmp_path: Path
) -> None:
    """Ours: a tool's result cannot contain lone surrogates."""
    (tmp_path / "caf\udce9").touch()
    assert call(tools, "list_dir", "/data") == ["caf�"]


def test_refusals_and_missing_files_have_distinct_exception_types(tools: list[RegisteredTool]) -> None:
    """Ours: guest code can tell a refusal from a missing file."""
    with pytest.raises(AccessDenied):
        call(tools, "read_text", "/etc/passwd")
    with pytest.raises(FileNotFoundError):
        call(tools, "read_text", "/data/none")
    with pytest.raises(FileNotFoundError):
        call(tools, "write_text", "/data/none/x", "")
    call(tools, "write_text", "/data/f", "")
    with pytest.raises(NotADirectoryError):
        call(tools, "list_dir", "/data/f")
