"""The quota of writable mounts: bytes and files."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from standfast import BlockingSandbox, Mount
from standfast.cli.host import SandboxGrants
from standfast.errors import InvalidArgument, ToolError
from standfast.tools.builtin import mounts
from standfast.tools.builtin.files import file_tools
from standfast.tools.builtin.mounts import MountTable


def writer(path: Path, **limits: int | None) -> Any:
    """Return `write_text` on `/out`."""
    table = MountTable({"/out": Mount(str(path), writable=True, **limits)})
    (write,) = (one for one in file_tools(table) if one.name == "write_text")
    return lambda name, text: write.handler(path=f"/out/{name}", text=text)


def refused(write: Any, name: str, text: str) -> str:
    with pytest.raises(ToolError) as caught:
        write(name, text)
    assert caught.value.code == "QUOTA_EXCEEDED"
    return caught.value.message


def test_a_mount_accepts_no_more_bytes_than_its_quota(tmp_path: Path) -> None:
    """Bug: guest code could fill the host's disk through a writable mount."""
    write = writer(tmp_path, max_bytes=10)
    assert write("a", "12345") == 5
    assert write("b", "12345") == 5
    assert "/out/c" in refused(write, "c", "1")
    assert refused(write, "a", "123456") == (
        "/out/a cannot be written: its mount holds 10 bytes, and 1 more exceed its quota of 10"
    )
    assert (sorted(os.listdir(tmp_path)), (tmp_path / "a").read_text()) == (["a", "b"], "12345")


def test_overwriting_a_file_frees_its_previous_size(tmp_path: Path) -> None:
    """Ours: the quota limits what the mount holds, not what was written to it."""
    write = writer(tmp_path, max_bytes=10)
    for _ in range(5):
        write("a", "1234567890")
    write("a", "1")
    write("b", "123456789")
    refused(write, "a", "12")
    write("b", "")
    write("a", "1234567890")


def test_bytes_are_counted_as_encoded(tmp_path: Path) -> None:
    """Ours: the quota counts UTF-8 bytes, not characters."""
    write = writer(tmp_path, max_bytes=3)
    refused(write, "a", "éé")
    assert write("a", "é") == 2


def test_a_mount_accepts_no_more_files_than_its_quota(tmp_path: Path) -> None:
    """Bug: empty files can fill a disk too; directories also count."""
    (tmp_path / "sub").mkdir()
    write = writer(tmp_path, max_files=3)
    write("a", "")
    write("sub/b", "")
    assert "its quota is 3" in refused(write, "c", "")
    write("a", "more")
    assert not (tmp_path / "c").exists()


def test_existing_files_count_and_may_always_shrink(tmp_path: Path) -> None:
    """Ours: a mount that already exceeds its quota can be written to as long as it does not grow."""
    (tmp_path / "old").write_text("x" * 100)
    write = writer(tmp_path, max_bytes=10)
    refused(write, "new", "1")
    assert write("old", "y" * 100) == 100
    assert write("old", "y" * 3) == 3
    assert write("new", "1234567") == 7


def test_space_freed_by_the_host_is_noticed_immediately(tmp_path: Path) -> None:
    """Ours: no write is refused because of an outdated count."""
    write = writer(tmp_path, max_bytes=10)
    write("a", "1234567890")
    (tmp_path / "a").unlink()
    write("b", "1234567890")


def test_a_file_created_by_the_host_is_noticed_when_the_count_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: other processes may write to the mount too."""
    write = writer(tmp_path, max_bytes=10)
    write("a", "1")
    (tmp_path / "b").write_text("123456789")
    monkeypatch.setattr(mounts, "_FRESH_S", -1.0)
    refused(write, "c", "1")


def test_concurrent_writes_share_the_quota(tmp_path: Path) -> None:
    """Ours: sixteen threads write through the mount tables of two sandboxes to one directory."""
    writers = [writer(tmp_path, max_bytes=50, max_files=8) for _ in range(2)]
    barrier = threading.Barrier(16)
    failed: list[str] = []

    def work(number: int) -> None:
        barrier.wait()
        try:
            writers[number % 2](f"f{number}", "12345")
        except ToolError as error:
            failed.append(error.code)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(os.listdir(tmp_path)) == 8
    assert failed == ["QUOTA_EXCEEDED"] * 8


def test_a_failed_write_is_not_counted(tmp_path: Path) -> None:
    """Ours: after a failed write the mount is counted again."""
    write = writer(tmp_path, max_bytes=10)
    with pytest.raises(FileNotFoundError):
        write("missing/a", "12345678")
    assert write("a", "1234567890") == 10


def test_symlinks_are_not_followed_when_counting(tmp_path: Path) -> None:
    """Ours: files outside the mount do not count towards its quota."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "big").write_text("x" * 100)
    (inside / "link").symlink_to("../outside")
    write = writer(inside, max_bytes=50)
    assert write("a", "x" * 30) == 30


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "10"])
def test_a_quota_that_is_not_a_number_is_refused(tmp_path: Path, wrong: Any) -> None:
    """Ours: an invalid quota must not mean no quota."""
    with pytest.raises(InvalidArgument, match="max_bytes"):
        MountTable({"/out": Mount(str(tmp_path), writable=True, max_bytes=wrong)})


def test_guest_code_sees_the_error_code_and_may_continue(tmp_path: Path) -> None:
    """Ours: a full mount fails the call, not the run."""
    mounts = {"/out": Mount(str(tmp_path), writable=True, max_bytes=4)}
    with BlockingSandbox(mounts=mounts) as box:
        code = (
            "try:\n    write_text('/out/a', '12345')\nexcept RuntimeError as error:\n    result = str(error)"
        )
        assert box.run(code).result.startswith("QUOTA_EXCEEDED: /out/a")
        assert box.run("write_text('/out/a', '1234')").result == 4


def test_the_command_lines_quota_is_stored_with_a_waiting_run(tmp_path: Path) -> None:
    """Ours: a decision in another process runs under the same quota; older records get the default."""
    grants = SandboxGrants(mounts={"/out": (str(tmp_path), True)}, mount_max_bytes=7)
    again = SandboxGrants.from_record(grants.record())
    mount = again.options(None).mounts["/out"]
    assert isinstance(mount, Mount)
    assert (mount.max_bytes, mount.max_files) == (7, 100_000)
    assert SandboxGrants.from_record({"mounts": {}}).mount_max_bytes is None
