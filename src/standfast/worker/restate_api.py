"""A worker's client for Restate: registers the worker, and wakes sessions with unclaimed work."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import urllib.error
import urllib.request
from typing import Final
from urllib.parse import quote

from standfast.errors import NotConfigured, StoreError
from standfast.model.canonical import Json
from standfast.model.session import SANDBOX_AGENT, TurnState
from standfast.ports.session_store import WORK
from standfast.runtime.agent_runtime import Runtime

log: Final = logging.getLogger("standfast")

SERVICE: Final = "standfast_session"
_HTTP_S: Final = 10.0
_SETTLE_S: Final = 1.0


class RestateApi:
    """Restate's admin API and ingress, each at one URL or several separated by commas.

    The servers of a cluster are interchangeable: if one does not respond, the next one is tried.
    """

    def __init__(self, admin: str, ingress: str) -> None:
        self._admin, self._ingress = admin.split(","), ingress.split(",")

    async def register(self, uri: str) -> None:
        """Register the worker's URL as a deployment. An existing registration is kept."""
        await self._post(self._admin, "/deployments", {"uri": uri}, known=409)

    async def wake(self, session_id: str, reason: str, *, service: str = SERVICE) -> bool:
        """Wake a session, once for each *reason*; return False if no worker has *service*."""
        path = f"/{service}/{quote(session_id, safe='')}/wake/send"
        return await self._post(self._ingress, path, None, headers={"idempotency-key": reason}, known=404)

    async def _post(
        self, urls: list[str], path: str, body: Json, *, headers: dict[str, str] | None = None, known: int = 0
    ) -> bool:
        """Return whether Restate accepts the request; False if it responds with the status *known*."""
        data = None if body is None else json.dumps(body).encode()
        given = {} if body is None else {"content-type": "application/json"}
        problem = ""
        for url in [one.strip().rstrip("/") + path for one in urls]:
            request = urllib.request.Request(url, data, {**given, **(headers or {})}, method="POST")  # noqa: S310
            try:
                await asyncio.to_thread(_send, request)
                return True
            except urllib.error.HTTPError as refused:
                with refused:
                    if refused.code == known:
                        return False
                    why = refused.read(500).decode("utf-8", "replace")
                if refused.code < 500:
                    raise NotConfigured(f"Restate refused {url} with {refused.code}: {why}") from None
                problem = f"Restate failed at {url} with {refused.code}: {why}"
            except (OSError, http.client.HTTPException) as error:
                problem = f"Restate cannot be reached at {url}: {error}"
        hint = "start restate-server, or give its address with --admin and --ingress"
        raise NotConfigured(problem, hint=hint)


def _send(request: urllib.request.Request) -> None:
    with urllib.request.urlopen(request, timeout=_HTTP_S) as answer:  # noqa: S310 - the operator's own address
        answer.read()


async def sweep(runtime: Runtime, restate: RestateApi, every_s: float) -> None:
    """Wake sessions with work that no invocation has: turns of dead workers, inputs queued elsewhere.

    It polls every *every_s*, and shortly after the store has announced work: by then an invocation that was
    made for the work has begun.
    """
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def hear(text: str) -> None:
        if text in ("", WORK):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

    stop_listening = runtime.store.listen(hear)
    try:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await changed.wait()
            changed.clear()
            await asyncio.sleep(min(every_s, _SETTLE_S))
            try:
                await _wake_all(runtime, restate)
            except (StoreError, NotConfigured) as error:  # the next sweep may succeed
                log.warning("the sweep for turns without an invocation failed: %s", error)
    finally:
        stop_listening()


async def _wake_all(runtime: Runtime, restate: RestateApi) -> None:
    minute = runtime.now_ms() // 60_000
    for record in await runtime.store.unfinished(runtime.now_ms()):
        if record.agent != SANDBOX_AGENT and record.state is not TurnState.ENDED:
            await restate.wake(record.session_id, f"sweep.{record.turn_id}.{minute}")
    for session_id in await runtime.store.with_queued():
        for item in (await runtime.store.inputs(session_id))[:1]:
            await restate.wake(session_id, f"sweep.{item.input_id}.{minute}")
