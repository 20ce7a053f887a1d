"""Large blobs as objects in an S3-compatible store; the database has their names.

Theory of operation
-------------------
A blob above the limit is uploaded before the transaction that stores it. Its row then has the name of the
object instead of the bytes. A blob is still found by its digest, and its bytes are checked against it. After
the bytes, the object has a digest of each chunk of `CHUNK_BYTES`; its name contains their number and a digest
of these digests. So a range can be checked as well, and only the chunks around it are read. The sweep after
pruning deletes the objects of deleted rows, and objects that no row ever named because the uploading process
died.

Rules
-----
1. Every upload has a unique name, so that a sweep that deletes an object cannot delete the same content that
   another process is uploading.
2. A row names an upload within `_USABLE_MS`, or never; the sweep does not delete objects younger than
   `_KEPT_S`.
3. A store deletes only objects in its own folder, which no other store has.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, NoReturn, TypeVar
from urllib.parse import parse_qsl, urlsplit

from standfast.errors import InvalidArgument, NotConfigured, RecordCorrupt, StoreUnavailable
from standfast.model.canonical import digest_bytes
from standfast.ports.session_store import Blob, BlobPart

T = TypeVar("T")

LIMIT_BYTES: Final = 256 << 10
CHUNK_BYTES: Final = 256 << 10
RETRY_S: Final = 30.0
_USABLE_MS: Final = 3_600_000
_KEPT_S: Final = 24 * 3600
_DIGEST_BYTES: Final = 16
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_FORM: Final = "write s3://BUCKET/PREFIX?over_bytes=262144&endpoint=https://HOST"


class ObjectBlobs:
    """The objects below *url*, `s3://BUCKET/PREFIX`. Methods block.

    The URL may set `over_bytes`, the size up to which blobs stay in the database, and `endpoint`. Credentials
    and region come from the environment, under the names that AWS's own tools use.
    """

    def __init__(self, url: str, *, retry_s: float = RETRY_S) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        over_bytes = options.pop("over_bytes", str(LIMIT_BYTES))
        given = options.pop("endpoint", None)
        if parts.scheme != "s3" or not parts.netloc or options or not over_bytes.isdecimal():
            raise InvalidArgument(f"blobs must be an s3:// URL with known options, got {url!r}", hint=_FORM)
        self.url = f"s3://{parts.netloc}{parts.path.rstrip('/')}"
        self.over_bytes = int(over_bytes)
        self._store = _open(parts.netloc, parts.path.strip("/"), given, retry_s)

    def put(self, folder: str, blob: Blob) -> Blob:
        """Upload *blob* to *folder*; return a blob with the name of the object instead of the bytes."""
        chunks = range(0, len(blob.data), CHUNK_BYTES)
        digests = b"".join(_digest(blob.data[at : at + CHUNK_BYTES]) for at in chunks)
        made = f"{time.time_ns() // 1_000_000:x}.{os.urandom(4).hex()}"
        name = f"{folder}/{blob.digest}.{made}.{len(blob.data)}.{_digest(digests).hex()}"
        self._call(lambda obstore: obstore.put(self._store, name, blob.data + digests, use_multipart=False))
        return Blob(digest=blob.digest, data=name.encode(), apart=True)

    def get(self, blob: Blob) -> bytes | None:
        """Return the bytes of a blob that names an object; None if there is no such object."""
        name = blob.data.decode()

        def read(obstore: Any) -> bytes | None:
            try:
                return bytes(obstore.get(self._store, name).bytes())
            except FileNotFoundError:
                return None

        data = self._call(read)
        if data is not None and (chunked := _Chunked.of(name)) is not None:
            data = data[: chunked.size]
        if data is not None and digest_bytes(data) != blob.digest:
            raise self._damaged(blob)
        return data

    def get_part(self, blob: Blob, start: int, stop: int | None) -> BlobPart | None:
        """Return a range of the bytes of a blob that names an object; None if there is no such object."""
        name = blob.data.decode()
        chunked = _Chunked.of(name)
        first, last, _ = slice(start, stop).indices(0 if chunked is None else chunked.size)
        begin, end = first // CHUNK_BYTES * CHUNK_BYTES, -(-last // CHUNK_BYTES) * CHUNK_BYTES
        if chunked is None or (begin == 0 and end >= chunked.size):  # without chunks, or all of them
            data = self.get(blob)
            return None if data is None else BlobPart.of(data, start, stop)
        if first >= last:
            return BlobPart(data=b"", start=first, size=chunked.size)
        end = min(end, chunked.size)
        ranges = {"starts": [begin, chunked.size], "ends": [end, chunked.end]}

        def read(obstore: Any) -> tuple[bytes, bytes] | None:
            try:
                chunks, digests = obstore.get_ranges(self._store, name, coalesce=0, **ranges)
                return bytes(chunks), bytes(digests)
            except FileNotFoundError:
                return None

        try:
            found = self._call(read)
        except StoreUnavailable as error:
            if "non-partial" not in str(error):
                raise
            data = self.get(blob)  # a server that ignores ranges
            return None if data is None else BlobPart.of(data, start, stop)
        if found is None:
            return None
        if not chunked.verifies(begin // CHUNK_BYTES, *found):
            raise self._damaged(blob)
        return BlobPart(data=found[0][first - begin : last - begin], start=first, size=chunked.size)

    def _damaged(self, blob: Blob) -> RecordCorrupt:
        return RecordCorrupt(f"blob {blob.digest} (object {blob.data.decode()} in {self.url})")

    def delete(self, names: Sequence[str]) -> None:
        """Delete these objects, as far as they exist."""
        for start in range(0, len(names), 1000):
            batch = list(names[start : start + 1000])
            self._call(lambda obstore, batch=batch: obstore.delete(self._store, batch))  # type: ignore[misc]

    def uploaded_long_ago(self, folder: str) -> list[str]:
        """Return the objects in *folder* that are old enough to be swept if no row names them."""
        before = datetime.now(UTC) - timedelta(seconds=_KEPT_S)

        def read(obstore: Any) -> list[str]:
            found = obstore.list(self._store, f"{folder}/")
            return [meta["path"] for batch in found for meta in batch if meta["last_modified"] < before]

        return self._call(read)

    def check(self) -> None:
        """Write, read, list and delete a test object; raise an error if one of these fails."""
        blob = Blob(digest=digest_bytes(b"standfast"), data=b"standfast")
        made = self.put("doctor", blob)
        if self.get(made) != blob.data:
            raise StoreUnavailable(f"the object store {self.url} does not return what was written to it")
        self.uploaded_long_ago("doctor")
        self.delete([made.data.decode()])

    def _call(self, work: Callable[[Any], T]) -> T:
        import obstore
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            return work(obstore)
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise NotConfigured(
                f"the object store {self.url} refused access: {_problem(error)}",
                hint="check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the rights to read, write, list "
                "and delete",
            ) from error
        except (BaseError, OSError) as error:
            raise StoreUnavailable(
                f"the object store {self.url} is not available: {_problem(error)}",
                hint="check the endpoint and the bucket, then retry",
            ) from error


class _Chunked(NamedTuple):
    """The format of an object with chunk digests: the number of bytes before them, and their digest."""

    size: int
    root: bytes

    @classmethod
    def of(cls, name: str) -> _Chunked | None:
        """Parse the name of an object; return None if it has no chunk digests."""
        _, _, _, *about = name.rpartition("/")[2].split(".")
        return cls(int(about[0]), bytes.fromhex(about[1])) if len(about) == 2 else None

    @property
    def end(self) -> int:
        return self.size + -(-self.size // CHUNK_BYTES) * _DIGEST_BYTES

    def verifies(self, number: int, chunks: bytes, digests: bytes) -> bool:
        """Return whether *chunks*, beginning with *number*, match *digests*, and these the object's name."""
        found = b"".join(_digest(chunks[at : at + CHUNK_BYTES]) for at in range(0, len(chunks), CHUNK_BYTES))
        at = number * _DIGEST_BYTES
        return _digest(digests) == self.root and digests[at : at + len(found)] == found


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_DIGEST_BYTES]


def _open(bucket: str, prefix: str, endpoint: str | None, retry_s: float) -> Any:
    try:
        from obstore.store import S3Store
    except ModuleNotFoundError:
        raise NotConfigured(
            "blobs in an object store need obstore", hint="pip install 'standfast[s3]'"
        ) from None

    endpoint = endpoint or next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    wait = timedelta(seconds=retry_s)
    return S3Store(
        bucket,
        prefix=prefix or None,
        config=None if endpoint is None else {"endpoint": endpoint},
        client_options={
            "allow_http": (endpoint or "").startswith("http://"),
            "connect_timeout": timedelta(seconds=min(5.0, retry_s)),
            "timeout": wait,
        },
        retry_config={"retry_timeout": wait},
    )


def _problem(error: BaseException) -> str:
    """Return the first line of an error, without the request that it repeats."""
    return str(error).strip().partition("\n")[0][:200]


def require_usable(blob: Blob) -> None:
    """Raise `StoreUnavailable` if the upload is so old that a sweep may delete the object."""
    uploaded_ms = int(blob.data.rpartition(b"/")[2].split(b".")[1], 16)
    if abs(time.time_ns() // 1_000_000 - uploaded_ms) > _USABLE_MS:
        raise StoreUnavailable(
            f"blob {blob.digest} was uploaded too long ago to be stored", hint="repeat the call"
        )


def refuse_apart(digest: str) -> NoReturn:
    """Raise `NotConfigured` because the store does not know where its large blobs are."""
    raise NotConfigured(
        f"blob {digest} is in an object store, but none is configured",
        hint="set STANDFAST_BLOBS to the URL that the other processes of this store use",
    )
