"""The sandbox as a JSON-RPC service: `standfast daemon`.

Rules
-----
1. A method corresponds to the method of `Sandbox` and returns its value. A failure of guest code is a result;
   a request that cannot be executed is an error, with our error object as its `data`.
2. A run belongs to its session, not to its connection: if a client disconnects, the run still completes and
   its state is stored.
3. The user on the other side of the connection is recorded as the decider of an approval.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument, UnknownTool
from standfast.model.canonical import Json
from standfast.model.limits import U64
from standfast.model.run import RunRequest
from standfast.model.session import HoldsSessionIds, SessionId, SessionIdField
from standfast.rpc.json_rpc import Read, RpcPeer, Write, converted, no_method
from standfast.runtime.sandbox import Sandbox


class Params(HoldsSessionIds, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A method's parameters, by name. Unknown parameters are rejected."""


class NoParams(Params, frozen=True, kw_only=True):
    """A method without parameters."""


class OfSession(Params, frozen=True, kw_only=True):
    session_id: SessionIdField = "default"


class CreateCodeSession(Params, frozen=True, kw_only=True):
    """A new session, deleted after `ttl_s` seconds."""

    session_id: SessionIdField
    language: str | None = None
    limits: dict[str, int] | None = None
    ttl_s: float | None = None


class RunInSession(Params, frozen=True, kw_only=True):
    """Code to run. `limits` overrides some of the session's limits for this run."""

    code: str
    session_id: SessionIdField = "default"
    language: str | None = None
    inputs: dict[str, Json] = msgspec.field(default_factory=dict)
    timeout_ms: U64 | None = None
    limits: dict[str, int] | None = None
    return_snapshot: bool = False
    validate_only: bool = False
    idempotency_key: str | None = None


class RestoreSnapshot(Params, frozen=True, kw_only=True):
    """A stored snapshot to restore, into its own session or another."""

    snapshot_id: str
    session_id: SessionIdField | None = None


class ForkSession(Params, frozen=True, kw_only=True):
    session_id: SessionIdField
    new_session_id: SessionIdField


class DescribeTool(Params, frozen=True, kw_only=True):
    name: str


class ListApprovals(Params, frozen=True, kw_only=True):
    """A filter for approvals: those of one session, those still pending."""

    session_id: SessionIdField | None = None
    pending: bool = False


class DecideApproval(Params, frozen=True, kw_only=True):
    """A decision. `args` and `kwargs`, if given, replace the call's."""

    approval_id: str
    approved: bool
    args: list[Json] | None = None
    kwargs: dict[str, Json] | None = None
    reason: str | None = None


class SandboxService:
    """The methods for one connection, whose other side is *user*."""

    def __init__(self, box: Sandbox, user: str) -> None:
        self._box = box
        self._user = user

    async def handle(self, method: str, params: Any) -> Any:
        """Return the result of a request; raise `StandfastError` if it cannot be executed."""
        found = METHODS.get(method)
        if found is None:
            raise no_method(method, f"the methods are {', '.join(METHODS)}")
        kind, name = found
        if isinstance(params, list) and params:
            raise InvalidArgument("params must be an object", hint="name each parameter")
        return await getattr(self, name)(converted(params or None, kind))

    async def create(self, asked: CreateCodeSession) -> Any:
        return await self._box.create(
            asked.session_id, limits=asked.limits, ttl_s=asked.ttl_s, language=asked.language
        )

    async def run(self, asked: RunInSession) -> Any:
        request = self._box.options.request(
            asked.code,
            session=asked.session_id,
            inputs=asked.inputs,
            timeout_ms=asked.timeout_ms,
            limits=asked.limits,
            snapshot=asked.return_snapshot,
            language=asked.language,
            validate_only=asked.validate_only,
            idempotency_key=asked.idempotency_key,
        )
        return await self._box.execute(request) if isinstance(request, RunRequest) else request

    async def validate(self, asked: RunInSession) -> Any:
        return await self.run(msgspec.structs.replace(asked, validate_only=True))

    async def resume(self, asked: OfSession) -> Any:
        return await self._box.resume(asked.session_id)

    async def cancel(self, asked: OfSession) -> Any:
        return {"cancelled": await self._box.cancel(asked.session_id)}

    async def snapshot(self, asked: OfSession) -> Any:
        return {"snapshot_id": await self._box.snapshot(asked.session_id)}

    async def restore(self, asked: RestoreSnapshot) -> Any:
        return {"session_id": await self._box.restore(asked.snapshot_id, session=asked.session_id)}

    async def fork(self, asked: ForkSession) -> Any:
        return {"session_id": await self._box.fork(asked.session_id, asked.new_session_id)}

    async def reset(self, asked: OfSession) -> Any:
        await self._box.reset(asked.session_id)
        return {"session_id": SessionId(asked.session_id)}

    async def destroy(self, asked: OfSession) -> Any:
        return {"destroyed": await self._box.destroy(asked.session_id)}

    async def sessions(self, asked: NoParams) -> Any:
        return {"sessions": await self._box.sessions()}

    async def tools(self, asked: NoParams) -> Any:
        listed = [
            {"name": one.name, "description": one.description, "side_effect": one.side_effect}
            for one in self._box.capabilities()
        ]
        return {"tools": listed}

    async def describe(self, asked: DescribeTool) -> Any:
        for one in self._box.capabilities():
            if one.name == asked.name:
                return one
        raise UnknownTool(f"there is no tool {asked.name[:80]!r}", hint="tools.list has the names")

    async def policy(self, asked: NoParams) -> Any:
        return self._box.policy()

    async def approvals(self, asked: ListApprovals) -> Any:
        found = await self._box.approvals(session=asked.session_id, pending=asked.pending)
        return {"approvals": found}

    async def decide(self, asked: DecideApproval) -> Any:
        if asked.approved:
            return await self._box.approve(
                asked.approval_id,
                args=asked.args,
                kwargs=asked.kwargs,
                reason=asked.reason,
                decided_by=self._user,
            )
        return await self._box.deny(asked.approval_id, reason=asked.reason, decided_by=self._user)


METHODS: Final[dict[str, tuple[type[Params], str]]] = {
    "session.create": (CreateCodeSession, "create"),
    "session.run": (RunInSession, "run"),
    "session.validate": (RunInSession, "validate"),
    "session.resume": (OfSession, "resume"),
    "session.cancel": (OfSession, "cancel"),
    "session.snapshot": (OfSession, "snapshot"),
    "session.restore": (RestoreSnapshot, "restore"),
    "session.fork": (ForkSession, "fork"),
    "session.reset": (OfSession, "reset"),
    "session.destroy": (OfSession, "destroy"),
    "session.list": (NoParams, "sessions"),
    "tools.list": (NoParams, "tools"),
    "tools.describe": (DescribeTool, "describe"),
    "policy.get": (NoParams, "policy"),
    "approvals.list": (ListApprovals, "approvals"),
    "approvals.decide": (DecideApproval, "decide"),
}
"""Each method with its parameter type and the method of `SandboxService` that handles it."""


async def serve_sandbox(box: Sandbox, read: Read, write: Write, user: str) -> None:
    """Serve one connection until its input ends."""
    await RpcPeer(read, write, SandboxService(box, user).handle).serve()
