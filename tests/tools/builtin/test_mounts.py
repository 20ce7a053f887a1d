"""Mounts: which paths guest code can reach."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from standfast.errors import AccessDenied, InvalidArgument
from standfast.tools.builtin.mounts import MAX_DEPTH, Mount, MountTable


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "inside"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (root / "sub" / "b.txt").write_text("b")
    return root


def read(table: MountTable, path: str) -> str:
    with table.open_to_read(path) as file:
        return os.read(file, 1000).decode()


def write(table: MountTable, path: str, text: str) -> None:
    with table.open_to_write(path, len(text)) as file:
        os.write(file, text.encode())


def test_a_file_below_a_mount_can_be_read(inside: Path) -> None:
    """Seed: mounts are virtual POSIX paths over host directories."""
    table = MountTable({"/data": inside})
    assert read(table, "/data/a.txt") == "a"
    assert read(table, "/data/sub/b.txt") == "b"
    assert read(table, "/data/./sub//b.txt") == "b"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a.txt",
        "data/a.txt",
        "/data/../secret",
        "/data/sub/../a.txt",
        "/data/..",
        "/..",
        "/data/a.txt\0",
        "/data/\udc80",
        "/etc/passwd",
        "/datax/a.txt",
        "/",
        "/data" + "/x" * 3000,
        "/data" + "/" * 5000,
    ],
)
def test_paths_that_are_not_plain_or_not_mounted_are_refused(inside: Path, path: str) -> None:
    """Seed: a path contains no `..` and no NUL, and lies in a mount."""
    with pytest.raises(AccessDenied) as raised:
        read(MountTable({"/data": inside}), path)
    assert raised.value.code == "PERMISSION_DENIED"
    assert str(inside) not in str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        "..%2fsecret", "%2e%2e", "%2E%2e/secret", ".%2e", "%252e%252e", "%25252e%25252e", "a%2f..%2fb", "%00",
        "..%5csecret", "sub%2Fb.txt",
    ],
)  # fmt: skip
def test_an_encoded_step_is_refused_although_it_is_never_decoded(inside: Path, name: str) -> None:
    """Seed: encoded path attacks are PERMISSION_DENIED."""
    table = MountTable({"/data": Mount(str(inside), writable=True)})
    for act in (lambda: read(table, f"/data/{name}"), lambda: write(table, f"/data/{name}", "x")):
        with pytest.raises(AccessDenied) as raised:
            act()
        assert raised.value.code == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    "name", ["100%.txt", "a%20b", "%", "50%-off", "..\\secret", "a\\..\\b", "...", "~", "$HOME", "*"]
)
def test_unusual_characters_have_no_special_meaning(inside: Path, name: str) -> None:
    """Ours: a path has exactly one spelling, so a decoder elsewhere cannot be tricked."""
    table = MountTable({"/data": Mount(str(inside), writable=True)})
    with pytest.raises(FileNotFoundError):
        read(table, f"/data/{name}")
    write(table, f"/data/{name}", "x")
    assert (inside / name).read_text() == "x"


@pytest.mark.parametrize(
    "target",
    ["../secret", "sub/../../secret", "../inside/a.txt", "sub/deep/../../../secret", "..", "back/secret"],
)
def test_a_symlink_out_of_the_mount_is_refused(inside: Path, target: str) -> None:
    """Seed: a symlink must not lead out of its mount."""
    (inside / "back").symlink_to("..")
    (inside / "link").symlink_to(target)
    table = MountTable({"/data": Mount(str(inside), writable=True)})
    with pytest.raises(AccessDenied):
        read(table, "/data/link")
    with pytest.raises(AccessDenied):
        write(table, "/data/link", "changed")
    with pytest.raises(AccessDenied):
        list(table.entries("/data/link"))
    assert (inside.parent / "secret").read_text() == "secret"


def test_an_absolute_symlink_is_refused_even_if_it_stays_inside(inside: Path) -> None:
    """Ours: an absolute target is a host path, which means nothing to a guest."""
    (inside / "link").symlink_to(inside / "a.txt")
    (inside / "dir").symlink_to("/")
    table = MountTable({"/data": inside})
    for path in ("/data/link", "/data/dir/etc/passwd"):
        with pytest.raises(AccessDenied, match="absolute symlink"):
            read(table, path)


def test_symlinks_that_stay_inside_are_followed(inside: Path) -> None:
    """Ours: ordinary directory trees contain relative symlinks."""
    (inside / "sub" / "up").symlink_to("../a.txt")
    (inside / "dir").symlink_to("sub/deep/..")
    (inside / "chain").symlink_to("./dir//up")
    table = MountTable({"/data": Mount(str(inside), writable=True)})
    assert read(table, "/data/chain") == "a"
    assert read(table, "/data/dir/b.txt") == "b"
    assert ("b.txt", False) in set(table.entries("/data/dir"))
    write(table, "/data/chain", "new")
    assert (inside / "a.txt").read_text() == "new"


def test_writing_through_a_dangling_symlink_stays_inside(inside: Path) -> None:
    """Ours: a path is resolved the same way for writing as for reading."""
    (inside / "in").symlink_to("sub/new.txt")
    (inside / "out").symlink_to("../new.txt")
    table = MountTable({"/data": Mount(str(inside), writable=True)})
    write(table, "/data/in", "x")
    assert (inside / "sub" / "new.txt").read_text() == "x"
    with pytest.raises(AccessDenied):
        write(table, "/data/out", "x")
    assert not (inside.parent / "new.txt").exists()


def test_symlink_loops_are_refused(inside: Path) -> None:
    """Ours: a path may contain at most 40 symlinks."""
    (inside / "loop").symlink_to("loop")
    (inside / "ping").symlink_to("pong/x")
    (inside / "pong").symlink_to("ping/y")
    table = MountTable({"/data": inside})
    for name in ("loop", "ping", "pong"):
        with pytest.raises(AccessDenied, match="40 symlinks"):
            read(table, f"/data/{name}")


def test_resolving_a_path_leaves_no_descriptor_open_and_uses_few(inside: Path) -> None:
    """Ours: a symlink loop must not exhaust the host's file descriptors."""
    (inside / "zigzag").symlink_to("sub/../" * 500 + "a.txt")
    table = MountTable({"/data": inside})
    before = len(os.listdir("/proc/self/fd"))
    assert read(table, "/data/zigzag") == "a"
    for path in ("/data/none", "/data/sub/none/x", "/data/a.txt/x", "/data/sub"):
        with pytest.raises(OSError, match="/data"):
            read(table, path)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_path_deeper_than_the_limit_is_refused(inside: Path) -> None:
    """Seed: the depth of a path is limited."""
    deep = inside.joinpath(*["d"] * (MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    with pytest.raises(AccessDenied, match="levels deep"):
        read(MountTable({"/data": inside}), "/data" + "/d" * (MAX_DEPTH + 1) + "/f")


def test_special_files_are_refused_without_blocking(inside: Path) -> None:
    """Ours: a FIFO in a mount must not hang its reader."""
    os.mkfifo(inside / "fifo")
    table = MountTable({"/data": Mount(str(inside), writable=True), "/dev": "/dev"})
    with pytest.raises(AccessDenied, match="not a regular file"):
        read(table, "/data/fifo")
    with pytest.raises(AccessDenied, match="not a regular file"):
        write(table, "/data/fifo", "x")
    with pytest.raises(AccessDenied, match="not a regular file"):
        read(table, "/dev/null")


def test_missing_files_and_directories_raise_pythons_exceptions(inside: Path) -> None:
    """Ours: guest code catches FileNotFoundError and the like, and sees only virtual paths."""
    table = MountTable({"/data": inside})
    cases = [
        ("/data/none", FileNotFoundError),
        ("/data/none/x", FileNotFoundError),
        ("/data/a.txt/x", NotADirectoryError),
        ("/data/sub", IsADirectoryError),
        ("/data", IsADirectoryError),
    ]
    for path, expected in cases:
        with pytest.raises(expected, match=path) as raised:
            read(table, path)
        assert str(inside) not in str(raised.value)


def test_a_read_only_mount_cannot_be_written(inside: Path) -> None:
    """Seed: writing needs a writable mount."""
    table = MountTable({"/data": inside})
    assert not table.writable
    with pytest.raises(AccessDenied, match="read-only"):
        write(table, "/data/a.txt", "x")
    with pytest.raises(AccessDenied, match="read-only"):
        write(table, "/data/new", "x")
    assert sorted(os.listdir(inside)) == ["a.txt", "sub"]


def test_the_longest_matching_mount_wins(inside: Path, tmp_path: Path) -> None:
    """Ours: a mount inside another hides the directory below it."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "b.txt").write_text("other")
    table = MountTable({"/": inside, "/sub": Mount(str(other), writable=True)})
    assert read(table, "/a.txt") == "a"
    assert read(table, "/sub/b.txt") == "other"
    write(table, "/sub/new", "x")
    with pytest.raises(AccessDenied):
        write(table, "/new", "x")
    assert sorted(table.entries("/")) == [("a.txt", False), ("sub", True)]


def test_directories_above_mounts_list_the_way_to_them(inside: Path) -> None:
    """Ours: guest code can find its mounts starting from "/"."""
    table = MountTable({"/a/b": inside, "/c": inside})
    assert sorted(table.entries("/")) == [("a", True), ("c", True)]
    assert sorted(table.entries("/a")) == [("b", True)]
    assert list(MountTable({}).entries("/")) == []
    over_root = MountTable({"/": inside, "/x/y": inside})
    assert list(over_root.entries("/x")) == [("y", True)]
    with pytest.raises(AccessDenied):
        list(table.entries("/d"))


@pytest.mark.parametrize("virtual", ["data", "", "/a/../b", "/a/", "//a", "/a/./b", "/a\0"])
def test_a_mount_point_must_be_absolute_and_normalised(inside: Path, virtual: str) -> None:
    """Ours: the configuration is validated when the table is created."""
    with pytest.raises(InvalidArgument):
        MountTable({virtual: inside})


def test_a_mount_needs_an_existing_host_directory(inside: Path) -> None:
    """Ours: the configuration is validated when the table is created."""
    for host in (inside / "none", inside / "a.txt"):
        with pytest.raises(InvalidArgument, match="not a directory"):
            MountTable({"/data": host})


def test_a_directory_swapped_for_a_symlink_never_leads_outside(inside: Path) -> None:
    """Ours: there is no gap between check and use; hostile code on the host may rename at any time."""
    (inside.parent / "b.txt").write_text("secret")
    (inside / "evil").symlink_to("..")
    table = MountTable({"/data": inside})
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(inside / "sub", inside / "kept")
            os.rename(inside / "evil", inside / "sub")
            os.rename(inside / "sub", inside / "evil")
            os.rename(inside / "kept", inside / "sub")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen: set[str] = set()
    try:
        for _ in range(1500):
            try:
                seen.add(read(table, "/data/sub/b.txt"))
            except (AccessDenied, OSError) as error:
                seen.add(type(error).__name__)
    finally:
        stop.set()
        swapper.join()
    assert "secret" not in seen
    assert read(table, "/data/sub/b.txt") == "b"
