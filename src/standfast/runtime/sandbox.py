"""`Sandbox`: runs untrusted code, which can reach only the tools that you grant.

async with Sandbox(tools=[order, refund], data_dir="data") as box:
    result = await box.run("order('A1')['total'] + 1", session="s1")
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec

from standfast.durable.journal import owner_is_dead
from standfast.errors import InvalidArgument, NotConfigured, ServiceUnavailable, StandfastError
from standfast.model.approval import Approval, Decision
from standfast.model.canonical import Json
from standfast.model.capability import Capability
from standfast.model.code import USUAL_ENGINE, Language
from standfast.model.limits import SessionLimits, milliseconds
from standfast.model.run import RunRequest, RunResult
from standfast.model.session import CodeSettings, SessionId, SessionInfo
from standfast.ports.clock import Clock, SystemClock
from standfast.ports.session_store import SessionStore
from standfast.ports.trace import TraceSink
from standfast.runtime.data_dir import KEY_VARIABLE, DataDir, key_from_text, open_sql_store
from standfast.runtime.sessions.approvals import approving
from standfast.sandbox.engine_kinds import SandboxConfig, kind_of
from standfast.tools.builtin.discovery import DiscoveryTools
from standfast.tools.builtin.mounts import Mount, MountTable
from standfast.tools.context import RunContext
from standfast.tools.registry import REGISTERED, ToolRegistry, ToolSource

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    from standfast.ports.language_runtime import LanguageRuntime
    from standfast.runtime.code_runs import CodeRuns, CodeRuntime
    from standfast.runtime.code_sessions import CodeSessions
    from standfast.tools.decorator import AnyTool

    class SandboxSettings(TypedDict, total=False):
        """The keywords of `Sandbox(...)` and `BlockingSandbox(...)`, described in `SandboxOptions`."""

        tools: Iterable[AnyTool[None]]
        mounts: Mounts
        allow_hosts: Sequence[str]
        allow_private_hosts: bool
        limits: SessionLimits | Mapping[str, int] | None
        data_dir: str | os.PathLike[str] | None
        approval_ttl_s: float
        keep_journals: float
        workers: int | None
        language: str
        engine: str | None
        packages: Sequence[str]
        host: Mapping[str, Json]
        clock: Clock
        trace: TraceSink | Sequence[TraceSink] | None

    class CheckSettings(TypedDict, total=False):
        """The keywords of `validate`; the session is "default" unless given."""

        session: str
        inputs: Mapping[str, Json] | None
        language: str | None

    class RunSettings(CheckSettings, total=False):
        """The keywords of `run`."""

        timeout_ms: int | None
        limits: SessionLimits | Mapping[str, int] | None
        snapshot: bool
        idempotency_key: str | None


Mounts = Mapping[str, Mount | str | os.PathLike[str]]


class SandboxOptions(msgspec.Struct, frozen=True):
    """The settings of a sandbox.

    `tools` are functions, ideally made with `@tool`. `mounts` map virtual paths to directories or `Mount`s.
    `allow_hosts` lists the hosts that `fetch_text` and `fetch_json` may reach. `limits` apply to sessions
    without limits of their own. Without `data_dir` everything is in memory. `approval_ttl_s` is how long a
    person may take to decide. `workers` limits the number of worker processes. `host` describes the tools to
    a process that continues a waiting run. `language` is the language of new sessions and the default of
    runs. `engine` runs it: `monty` (the default), `cpython` or `auto` for Python, `quickjs` for TypeScript;
    existing sessions keep their engine. `packages` are installed packages that code on `cpython` may import.
    `trace` receives the spans of every run: `JsonlTrace("trace.jsonl")`. The journals of ended runs are kept
    for `keep_journals` seconds, for the waterfall and the journal in the workbench.
    """

    tools: Iterable[AnyTool[None]] = ()
    mounts: Mounts = msgspec.field(default_factory=dict)
    allow_hosts: Sequence[str] = ()
    allow_private_hosts: bool = False
    limits: SessionLimits = msgspec.field(default_factory=SessionLimits)
    data_dir: str | os.PathLike[str] | None = None
    approval_ttl_s: float = 24 * 3600
    keep_journals: float = 0
    workers: int | None = None
    language: Language | str = Language.PYTHON
    engine: str | None = None
    packages: Sequence[str] = ()
    host: Mapping[str, Json] = msgspec.field(default_factory=dict)
    clock: Clock = msgspec.field(default_factory=SystemClock)
    trace: TraceSink | Sequence[TraceSink] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.limits, SessionLimits):
            msgspec.structs.force_setattr(self, "limits", limits_over(SessionLimits(), self.limits or {}))
        milliseconds("approval_ttl_s", self.approval_ttl_s, least=0.001)
        milliseconds("keep_journals", self.keep_journals)
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise InvalidArgument(f"workers must be at least 1, got {self.workers!r}")
        msgspec.structs.force_setattr(self, "language", as_language(self.language))
        if self.engine is not None and kind_of(self.engine).language != self.language:
            raise InvalidArgument(
                f"{self.engine} runs {kind_of(self.engine).language}, not {self.language}",
                hint=f"{USUAL_ENGINE[as_language(self.language)]} does",
            )

    def request(
        self,
        code: str,
        *,
        session: str = "default",
        inputs: Mapping[str, Json] | None = None,
        timeout_ms: int | None = None,
        limits: SessionLimits | Mapping[str, int] | None = None,
        snapshot: bool = False,
        language: str | None = None,
        validate_only: bool = False,
        idempotency_key: str | None = None,
    ) -> RunRequest | RunResult:
        """Return the request, or a failed result if it is not valid."""
        try:
            return RunRequest(
                session_id=session,
                language=self.language if language is None else as_language(language),  # type: ignore[arg-type]
                code=code,
                inputs=dict(inputs or {}),
                timeout_ms=timeout_ms,
                limits=None if limits is None else self.complete_limits(limits),
                return_snapshot=snapshot,
                validate_only=validate_only,
                idempotency_key=idempotency_key,
            )
        except StandfastError as error:
            return RunResult.failed(error.error_object())

    def language_of(self, given: str | None) -> Language:
        """Return the given language, or that of this sandbox."""
        return as_language(self.language if given is None else given)

    def complete_limits(self, given: SessionLimits | Mapping[str, int] | None) -> SessionLimits | None:
        """Return the given limits, completed by those of this sandbox."""
        if given is None or isinstance(given, SessionLimits):
            return given
        return limits_over(self.limits, given)

    def session_settings(
        self,
        sessions: CodeSessions,
        limits: SessionLimits | Mapping[str, int] | None,
        ttl_s: float | None,
        language: str | None,
    ) -> CodeSettings:
        """Return the settings of a new session."""
        ttl_ms = None if ttl_s is None else milliseconds("ttl_s", ttl_s, least=0.001)
        return sessions.new_settings(self.language_of(language), self.complete_limits(limits), ttl_ms)

    def policy(self, run: RunContext[Any] | None = None) -> dict[str, Json]:
        """Return the limits and grants of guest code in *run*, or by default in any run."""
        mounts = MountTable(self.mounts).mounts
        of_session = (run and run.session_limits) or self.limits
        return {
            "limits": msgspec.to_builtins((run and run.limits) or of_session),
            "session_limits": msgspec.to_builtins(of_session),
            "mounts": {path: "rw" if mount.writable else "ro" for path, mount in mounts.items()},
            "allow_hosts": list(self.allow_hosts),
        }


def as_language(name: str) -> Language:
    """Return the language of this name."""
    if type(name) is Language:
        return name
    try:
        return Language(name)
    except ValueError:
        known = ", ".join(Language)
        raise InvalidArgument(f"language {name!r} is unknown", hint=f"use one of {known}") from None


def limits_over(base: SessionLimits, given: Mapping[str, int]) -> SessionLimits:
    """Return *base* with the *given* limits replaced."""
    try:
        return msgspec.convert({**msgspec.to_builtins(base), **given}, SessionLimits)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgument(f"limits: {error}") from None


def open_runs(options: SandboxOptions, registry: ToolRegistry) -> CodeRuns:
    """Open the sandbox that *options* describe, in memory or in a data directory."""
    if registry.outdated():
        registry.refresh()
    store, key = _open_store(options.data_dir)
    from standfast.runtime.code_runs import CodeRuns
    from standfast.runtime.code_turns import SandboxServices

    config = SandboxConfig(
        snapshot_key=key,
        limits=options.limits,
        approval_ttl_ms=int(options.approval_ttl_s * 1000),
        keep_journals_ms=int(options.keep_journals * 1000),
        workers=options.workers or max(8, 4 * (os.cpu_count() or 1)),
        engine=options.engine,
        packages=tuple(options.packages),
        clock=options.clock,
        host=dict(options.host),
        trace=options.trace,
    )
    return CodeRuns(SandboxServices(registry, store, config))


class SandboxFacade:
    """The options and the tools of a sandbox."""

    def __init__(self, options: SandboxOptions | None, settings: SandboxSettings) -> None:
        try:
            self.options = options or SandboxOptions(**settings)  # type: ignore[arg-type]
        except TypeError as error:
            raise InvalidArgument(f"Sandbox: {error}") from None
        self.registry = make_registry(self.options)

    def capabilities(self) -> list[Capability]:
        """Return the capabilities that guest code may call."""
        return self.registry.capabilities()

    def policy(self) -> dict[str, Json]:
        """Return the limits and grants of guest code."""
        return self.options.policy()


class Sandbox(SandboxFacade):
    """Sessions of guest code. Use it as an async context manager, on one event loop.

    Without `data_dir` everything is in memory. With it, sessions, snapshots, waiting runs and approvals are
    on disk when a call returns, and any process with the same directory can continue them.

    With `runtime`, another `LanguageRuntime` runs the code and stores its sessions. Methods that are not part
    of this interface (approvals, recovery, detailed lists) raise `ServiceUnavailable`.
    """

    def __init__(
        self,
        options: SandboxOptions | None = None,
        /,
        *,
        runtime: LanguageRuntime | None = None,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        super().__init__(options, settings)
        self._foreign = runtime
        self._runtime: CodeRuntime | None = None

    async def __aenter__(self) -> Self:
        import asyncio

        from standfast.runtime.code_runs import CodeRuntime

        if self._runtime is not None:
            raise InvalidArgument("this sandbox is already open")
        if self._foreign is not None:
            return self
        if self.registry.outdated():
            await asyncio.to_thread(self.registry.refresh)
        runs = open_runs(self.options, self.registry)
        runs.services.dispatcher.home = asyncio.get_running_loop()
        self._runtime = CodeRuntime(runs, self.options.language_of(None))
        return self

    async def __aexit__(self, *exc: object) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()
        for source, _ in self.registry.connected.values():
            await source.close()

    # ── runs ─────────────────────────────────────────────────────────────────────────────────────

    async def run(self, code: str, **settings: Unpack[RunSettings]) -> RunResult:
        """Run *code* in a session and return its result, which also reports failures of the code.

        Repeating a call with the same *idempotency_key* returns the stored result without running the code.
        """
        request = self.options.request(code, **settings)
        return request if isinstance(request, RunResult) else await self._language.run(request)

    async def validate(self, code: str, **settings: Unpack[CheckSettings]) -> RunResult:
        """Check *code* without running any of it: syntax, types, unknown calls, unsupported features."""
        request = self.options.request(code, **settings, validate_only=True)
        return request if isinstance(request, RunResult) else await self._language.run(request)

    async def execute(self, request: RunRequest) -> RunResult:
        """Run or check the code of a `RunRequest`."""
        return await self._language.run(request)

    async def cancel(self, session: str) -> bool:
        """Cancel the session's running or waiting run; return False if there is none."""
        return await self._language.cancel(SessionId(session))

    async def resume(self, session: str) -> RunResult:
        """Continue the session's waiting run until it ends or needs another decision."""
        return await self._language.resume(SessionId(session))

    async def recover(self, session: str | None = None) -> dict[str, RunResult]:
        """Continue the runs of dead processes and those whose waits are over; return results by session."""
        return await self._open.do(self._open.runs.recover(session))

    # ── approvals ────────────────────────────────────────────────────────────────────────────────

    async def approvals(self, *, session: str | None = None, pending: bool = False) -> list[Approval]:
        """Return approval requests, oldest first; with *pending*, only those that can still be decided."""
        return await self._open.do(self._open.runs.approvals(session=session, pending=pending))

    async def approval(self, approval_id: str) -> Approval:
        """Return one approval request."""
        return await self._open.do(self._open.runs.approval(approval_id))

    async def approval_host(self, approval_id: str) -> dict[str, Json]:
        """Return the description of the process that made the request (`Sandbox(host=...)`)."""
        return await self._open.do(self._open.runs.approval_host(approval_id))

    async def approve(
        self,
        approval_id: str,
        *,
        args: Sequence[Json] | None = None,
        kwargs: Mapping[str, Json] | None = None,
        reason: str | None = None,
        decided_by: str | None = None,
    ) -> RunResult:
        """Approve a call, with other arguments if given, and continue its run. *decided_by* is stored."""
        return await self._open.decide(approval_id, approving(args, kwargs, reason, decided_by))

    async def deny(
        self, approval_id: str, *, reason: str | None = None, decided_by: str | None = None
    ) -> RunResult:
        """Deny a call and continue its run, which gets a PermissionError."""
        decision = Decision(approved=False, reason=reason, decided_by=decided_by)
        return await self._open.decide(approval_id, decision)

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────

    async def create(
        self,
        session: str,
        *,
        limits: SessionLimits | Mapping[str, int] | None = None,
        ttl_s: float | None = None,
        language: str | None = None,
    ) -> SessionInfo:
        """Create an empty session with limits of its own; after *ttl_s* seconds it is deleted."""
        sessions = self._open.runs.sessions
        settings = self.options.session_settings(sessions, limits, ttl_s, language)
        await self._open.do(sessions.create(SessionId(session), settings))
        return await self.session(session)

    async def sessions(self) -> list[SessionInfo]:
        """Return all sessions, oldest first."""
        return await self._open.do(self._open.runs.sessions.infos())

    async def session(self, session: str) -> SessionInfo:
        return await self._open.do(self._open.runs.sessions.info(SessionId(session)))

    async def snapshot(self, session: str) -> str:
        """Store a snapshot of the session and return its id."""
        return await self._open.do(self._open.runs.snapshot(SessionId(session)))

    async def export_snapshot(self, session_or_id: str) -> bytes:
        """Return the signed bytes of a stored snapshot (`snap_…`), or of a session's current state."""
        if self._foreign is not None:
            return await self._foreign.snapshot_session(SessionId(session_or_id))
        return await self._open.do(self._open.runs.export_snapshot(session_or_id))

    async def restore(self, snapshot: str | bytes, *, session: str | None = None) -> str:
        """Restore a snapshot, given by id or as bytes, into its own session or another; return its id."""
        if self._foreign is not None and isinstance(snapshot, bytes):
            return await self._foreign.restore_session(snapshot, SessionId(session) if session else None)
        return await self._open.do(self._open.runs.restore(snapshot, session))

    async def snapshot_host(self, snapshot: str | bytes) -> dict[str, Json]:
        """Return the description of the process that made a snapshot (`Sandbox(host=...)`)."""
        return await self._open.do(self._open.runs.snapshots.host_of(snapshot))

    def can_restore(self, snapshot: bytes) -> bool:
        """Return whether `restore` would accept these bytes."""
        return self._language.can_restore_snapshot(snapshot)

    async def fork(self, session: str, new_session: str) -> str:
        """Create a session with the same variables."""
        return await self._language.fork_session(SessionId(session), SessionId(new_session))

    async def reset(self, session: str) -> None:
        """Delete the session's variables and its waiting run."""
        await self._open.do(self._open.runs.reset(SessionId(session)))

    async def destroy(self, session: str) -> bool:
        """Delete the session; return False if it does not exist."""
        return await self._language.destroy_session(SessionId(session))

    @property
    def is_open(self) -> bool:
        return self._foreign is not None or self._runtime is not None

    @property
    def _language(self) -> LanguageRuntime:
        return self._open if self._foreign is None else self._foreign

    @property
    def _open(self) -> CodeRuntime:
        if self._foreign is not None:
            raise ServiceUnavailable(
                "this method of Sandbox", "a LanguageRuntime of another package runs its code"
            )
        if self._runtime is None:
            raise InvalidArgument("this sandbox is not open", hint="use `async with Sandbox(...) as box:`")
        return self._runtime


def make_registry(options: SandboxOptions) -> ToolRegistry:
    """Return the capabilities that *options* grant."""
    registry = ToolRegistry()
    registry.upsert(REGISTERED, DiscoveryTools(registry, options.policy))
    if options.mounts:
        from standfast.tools.builtin.files import file_tools

        for tool in file_tools(MountTable(options.mounts)):
            registry.register(tool)
    if options.allow_hosts:
        from standfast.tools.builtin.http import http_tools

        for tool in http_tools(options.allow_hosts, allow_private=options.allow_private_hosts):
            registry.register(tool)
    for candidate in options.tools:
        if isinstance(candidate, ToolSource):
            registry.connect(candidate)
        else:
            from standfast.tools.decorator import as_registered

            registry.register(as_registered(candidate))
    return registry


def _open_store(data_dir: str | os.PathLike[str] | None) -> tuple[SessionStore, bytes]:
    if data_dir is None:
        from standfast.store.memory_sessions import MemorySessionStore

        given = os.environ.get(KEY_VARIABLE)
        key = key_from_text(given) if given else os.urandom(32)
        return MemorySessionStore(owner_is_dead=owner_is_dead), key
    home = DataDir(data_dir)
    store = open_sql_store(home.database, owner_is_dead)
    try:
        return store, home.snapshot_key()
    except NotConfigured:
        if getattr(store.database, "writable", True) or home.key_file.exists():
            store.database.close()
            raise
        return store, os.urandom(32)  # a new store has no signed snapshots, so any key will do
