"""Large blobs in a real S3-compatible store on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Runtime, ScriptedModel, open_store
from standfast.errors import InvalidArgument, NotConfigured, RecordCorrupt, StoreUnavailable
from standfast.ports.session_store import Blob, BlobPart, PruneRequest
from standfast.runtime.agent_session import Attachment
from standfast.store import object_blobs
from standfast.store.copying import copy_store
from standfast.store.object_blobs import ObjectBlobs
from standfast.store.postgres.sessions import PostgresSessionStore
from standfast.store.sql import inputs as queue
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.postgres_server import PostgresServer
from standfast.testing.s3_server import S3Server
from standfast.testing.session_values import NOW, a_blob, a_head, a_state

Store = SqliteSessionStore | PostgresSessionStore
LARGE, SMALL = a_blob(b"large" * 100), a_blob(b"small")


@pytest.fixture
def url(s3: S3Server) -> str:
    return s3.new_url(over_bytes=100)


@pytest.fixture(params=["sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Store]:
    """Make stores of one kind; stores with the same name are one store, as two processes see it."""
    places: dict[str, str] = {}

    def open_one(url: str | None, name: str = "shop", retry_s: float = 5) -> Store:
        blobs = None if url is None else ObjectBlobs(url, retry_s=retry_s)
        if request.param == "sqlite":
            return SqliteSessionStore(tmp_path / f"{name}.db", blobs=blobs)
        server: PostgresServer = request.getfixturevalue("postgres")
        place = places.setdefault(name, server.new_url())
        return PostgresSessionStore(place, database_clock=False, blobs=blobs)

    return open_one


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    try:
        yield store
    finally:
        await store.close()


async def keep(store: Store, *blobs: Blob, session_id: str = "s1") -> None:
    """Make the state of a session name *blobs* and no others."""
    await store.open_session(a_head(session_id))
    await store.set_state(session_id, a_state(os.urandom(4).hex(), *blobs), blobs, NOW)


def test_only_blobs_over_the_limit_become_objects(make: Callable[..., Store], s3: S3Server, url: str) -> None:
    """Ours: small blobs stay in the database; both kinds are found by their digest."""

    async def check() -> None:
        async with opened(make(url)) as store:
            await keep(store, LARGE, SMALL)
            assert [path.name.partition(".")[0] for path in s3.objects(url)] == [LARGE.digest]
            assert await store.blob(LARGE.digest) == LARGE.data
            assert await store.blob(SMALL.digest) == SMALL.data
        async with opened(make(url)) as store:
            assert await store.blob(LARGE.digest) == LARGE.data

    asyncio.run(check())


class Partial:
    """A proxy that answers range requests with status 206, where rclone answers with 200."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server)) as server:
            while ready := select.select([client, server], [], [], 10)[0]:
                for side in ready:
                    if not (data := side.recv(1 << 16)):
                        return
                    if side is server and b"Content-Range: " in data:
                        data = data.replace(b" 200 OK", b" 206 Partial Content", 1)
                    (server if side is client else client).sendall(data)

    def close(self) -> None:
        self._listener.close()


def test_a_range_of_a_blob_is_read_without_the_rest(
    make: Callable[..., Store], s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: reading a range of a large attachment loads and verifies only the chunks in it."""
    monkeypatch.setattr(object_blobs, "CHUNK_BYTES", 64)
    data = os.urandom(1_000)
    blob = a_blob(data)
    partial = Partial(s3.port)

    async def check() -> None:
        async with opened(make(url)) as store:
            await keep(store, blob, SMALL)
            assert await store.blob_part(blob.digest, 0) == BlobPart.of(data, 0, None)
            assert await store.blob_part(blob.digest, 70, 80) == BlobPart.of(data, 70, 80)
        async with opened(make(url.replace(str(s3.port), str(partial.port)))) as store:
            monkeypatch.setattr(ObjectBlobs, "get", None)
            for start, stop in ((0, 1), (63, 65), (130, 700), (-10, None), (990, 5_000), (64, None)):
                part = await store.blob_part(blob.digest, start, stop)
                assert part == BlobPart.of(data, start, stop)
                assert part.data == data[start:stop]
            beyond = await store.blob_part(blob.digest, 1_000, None)
            assert beyond == BlobPart(data=b"", start=1_000, size=1_000)
            assert await store.blob_part(SMALL.digest, 1, 3) == BlobPart(data=b"ma", start=1, size=5)
            assert await store.blob_part("0" * 64, 0) is None
            (path,) = s3.objects(url)
            whole = path.read_bytes()
            path.write_bytes(whole[:500] + b"?" + whole[501:])
            assert await store.blob_part(blob.digest, 0, 64) == BlobPart.of(data, 0, 64)
            with pytest.raises(RecordCorrupt, match=blob.digest):
                await store.blob_part(blob.digest, 400, 600)
            path.write_bytes(whole[:-1] + b"?")
            with pytest.raises(RecordCorrupt, match=blob.digest):
                await store.blob_part(blob.digest, 0, 64)

    asyncio.run(check())
    partial.close()


def test_an_object_of_an_earlier_version_is_read_in_full(
    make: Callable[..., Store], s3: S3Server, url: str
) -> None:
    """Ours: objects of earlier versions have no chunk digests, and keep their names."""

    async def check() -> None:
        async with opened(make(url)) as store:
            folder = await store._own_folder()
            objects = ObjectBlobs(url)
            made = objects.put(folder, LARGE).data.decode()
            name = ".".join(made.split(".")[:3])
            objects._call(lambda obstore: obstore.put(objects._store, name, LARGE.data))
            objects.delete([made])
            await store.open_session(a_head("s1"))
            old = Blob(digest=LARGE.digest, data=name.encode(), apart=True)
            await store._write(lambda db: queue.put_blobs(db, (old,)))
            assert await store.blob(LARGE.digest) == LARGE.data
            assert await store.blob_part(LARGE.digest, 3, 9) == BlobPart.of(LARGE.data, 3, 9)

    asyncio.run(check())


def test_a_sweep_deletes_the_objects_of_pruned_blobs(
    make: Callable[..., Store], s3: S3Server, url: str
) -> None:
    """Ours: an object is deleted with the last record that names it."""

    async def check() -> None:
        async with opened(make(url)) as store:
            await keep(store, LARGE)
            assert (await store.prune(PruneRequest())).blobs == 0
            assert len(s3.objects(url)) == 1
            await store.delete_session("s1")
            assert (await store.prune(PruneRequest())).blobs == 1
            assert s3.objects(url) == []
            assert await store.blob(LARGE.digest) is None

    asyncio.run(check())


def test_a_sweep_deletes_uploads_of_a_dead_process_but_nothing_recent(
    make: Callable[..., Store], s3: S3Server, url: str
) -> None:
    """Ours: a process may die between the upload and the transaction that names it."""

    async def check() -> None:
        async with opened(make(url)) as store:
            await keep(store, LARGE)
            folder = await store._own_folder()
            for text in (b"old", b"new"):
                ObjectBlobs(url).put(folder, a_blob(text))
            for path in s3.objects(url):
                if not path.name.startswith(a_blob(b"new").digest):
                    os.utime(path, (time.time() - 90_000,) * 2)
            await store.prune(PruneRequest())
            left = {path.name.partition(".")[0] for path in s3.objects(url)}
            assert left == {LARGE.digest, a_blob(b"new").digest}
            assert await store.blob(LARGE.digest) == LARGE.data

    asyncio.run(check())


def test_content_stored_again_during_a_sweep_is_not_lost(
    make: Callable[..., Store], s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: one process sweeps a row and its object while another stores the same content."""
    delete = ObjectBlobs.delete

    async def check() -> None:
        async with opened(make(url)) as store, opened(make(url)) as other:
            await keep(store, LARGE)
            await store.delete_session("s1")
            loop = asyncio.get_running_loop()

            def store_again(self: ObjectBlobs, names: Any) -> None:
                monkeypatch.setattr(ObjectBlobs, "delete", delete)
                asyncio.run_coroutine_threadsafe(keep(other, LARGE, session_id="s2"), loop).result(10)
                delete(self, names)

            monkeypatch.setattr(ObjectBlobs, "delete", store_again)
            assert (await store.prune(PruneRequest())).blobs == 1
            assert await other.blob(LARGE.digest) == LARGE.data
            assert len(s3.objects(url)) == 1

    asyncio.run(check())


def test_two_stores_in_one_bucket_leave_each_others_objects_alone(
    make: Callable[..., Store], s3: S3Server, url: str
) -> None:
    """Ours: operators keep several stores in one bucket."""

    async def check() -> None:
        async with opened(make(url)) as one, opened(make(url, "other")) as two:
            await keep(one, LARGE)
            for path in s3.objects(url):
                os.utime(path, (1, 1))
            await keep(two, LARGE)
            await two.delete_session("s1")
            await two.prune(PruneRequest())
            assert await one.blob(LARGE.digest) == LARGE.data

    asyncio.run(check())


def test_a_copied_store_shares_its_objects_and_neither_deletes_them(
    make: Callable[..., Store], s3: S3Server, url: str
) -> None:
    """Ours: pruning the source after a move must not delete the target's objects."""

    async def check() -> None:
        async with opened(make(url)) as source, opened(make(url, "target")) as target:
            await keep(source, LARGE)
            copy_store(source.database, target.database, "source", NOW, lambda owner: False)
        async with opened(make(url)) as source, opened(make(url, "target")) as target:
            await source.delete_session("s1")
            assert (await source.prune(PruneRequest())).blobs == 1
            assert await target.blob(LARGE.digest) == LARGE.data

    asyncio.run(check())


def test_an_upload_is_not_recorded_after_a_sweep_may_have_deleted_it(
    make: Callable[..., Store], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a process may stall between the upload and the transaction that names it."""
    monkeypatch.setattr(object_blobs, "_USABLE_MS", -1)

    async def check() -> None:
        async with opened(make(url)) as store:
            with pytest.raises(StoreUnavailable, match="uploaded too long ago"):
                await keep(store, LARGE)
            assert await store.blob(LARGE.digest) is None

    asyncio.run(check())


def test_damaged_missing_and_unconfigured_objects_raise_typed_errors(
    make: Callable[..., Store], s3: S3Server, url: str
) -> None:
    """Ours: a read returns the right bytes or raises; it never returns wrong bytes."""

    async def check() -> None:
        async with opened(make(url)) as store, opened(make(None)) as unaware:
            await keep(store, LARGE)
            with pytest.raises(NotConfigured, match="none is configured") as refused:
                await unaware.blob(LARGE.digest)
            assert "STANDFAST_BLOBS" in str(refused.value.hint)
            (path,) = s3.objects(url)
            path.write_bytes(b"other bytes")
            with pytest.raises(RecordCorrupt, match=LARGE.digest):
                await store.blob(LARGE.digest)
            path.unlink()
            with pytest.raises(RecordCorrupt, match="its object is missing"):
                await store.blob(LARGE.digest)

    asyncio.run(check())


@pytest.mark.slow
def test_an_unreachable_server_is_a_typed_error_and_nothing_is_stored(make: Callable[..., Store]) -> None:
    """Ours: a turn that needs the object store fails as a whole, and can be retried."""
    with S3Server() as server:
        url = server.new_url()

        async def check() -> None:
            async with opened(make(url, retry_s=0.5)) as store:
                await keep(store, LARGE)
                server.stop()
                other = a_blob(b"other")
                with pytest.raises(StoreUnavailable, match="object store s3://blobs/place-1") as failed:
                    await keep(store, other)
                assert failed.value.retryable
                with pytest.raises(StoreUnavailable):
                    await store.blob(LARGE.digest)
                server.start()
                assert await store.blob(other.digest) is None
                assert await store.blob(LARGE.digest) == LARGE.data
                await keep(store, other)
                assert await store.blob(other.digest) == other.data

        asyncio.run(check())


def test_wrong_credentials_are_the_operators_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: no retry can fix wrong credentials, so the error is not retryable."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(NotConfigured, match="refused access"):
        ObjectBlobs(url).check()


@pytest.mark.parametrize("wrong", ["gs://b", "s3://", "s3://b?over_bytes=many", "s3://b?limit=1", "blobs"])
def test_an_error_about_a_wrong_url_shows_the_right_form(wrong: str) -> None:
    """Ours: the hint shows the form `s3://BUCKET`."""
    with pytest.raises(InvalidArgument, match="s3:// URL") as refused:
        ObjectBlobs(wrong)
    assert "s3://BUCKET" in str(refused.value.hint)


@pytest.mark.parametrize("by", ["argument", "variable", "url"])
def test_attachments_are_stored_in_the_configured_object_store(
    by: str, s3: S3Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: PostgresServer
) -> None:
    """Ours: `open_store(blobs=)`, `STANDFAST_BLOBS`, or `blobs=` in the URL of a PostgreSQL store."""
    place: Any = tmp_path / "shop.db"
    if by == "argument":
        place = open_store(place, blobs=url)
    elif by == "variable":
        monkeypatch.setenv("STANDFAST_BLOBS", url)
    else:
        place = f"{postgres.new_url()}&blobs={url.replace('&', '%26')}"
    agent = Agent(ScriptedModel(["A red square."]), name="looker")
    image = Attachment(b"\x89PNG" + bytes(1000), "image/png")

    async def check() -> None:
        async with Runtime(place, agents=[agent]) as runtime:
            session = await runtime.session("s1", agent=agent)
            assert (await session.turn(["What is it?", image])).output == "A red square."
            (path,) = s3.objects(url)
            assert path.read_bytes().startswith(image.data)

    asyncio.run(check())
