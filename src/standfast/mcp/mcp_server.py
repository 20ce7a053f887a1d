"""An MCP server as a source of tools for agents.

Theory of operation
-------------------
What a server advertises is pinned on first use. From then on a session opens with the pinned tools, and the
first call starts the server. A connection compares what the server advertises with the pin; if they differ,
the call becomes a question to a person. A call is an effect like that of any other tool: the journal,
approvals, limits and records do not know about MCP.

Rules
-----
1. Nothing on a server that differs from its pin is called before a person agrees.
2. A server stays connected while calls are in progress and for `idle_s` after that. A waiting turn holds no
   connection.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from standfast.errors import (
    Code,
    InvalidArgument,
    McpServerChanged,
    McpServerFailed,
    NotConfigured,
    ToolError,
    UnknownTool,
)
from standfast.mcp.connection import HANDSHAKE, STATELESS, McpConnection, McpEndpoint
from standfast.mcp.contracts import (
    DEFAULT_TIMEOUT_S,
    AdvertisedTool,
    Declarations,
    McpTool,
    check_server_name,
    described,
    tool_names,
)
from standfast.mcp.credentials import SIGN_IN_S, CredentialFile, McpSignIn
from standfast.mcp.exchange import Answer, Ask, Asked, AskedMidway, AskNow, InputState
from standfast.mcp.jail import McpJail
from standfast.mcp.pins import Pin, PinFile
from standfast.mcp.resources import as_attachment, read_resource, resource_tools, sdk_request
from standfast.mcp.results import IMAGE_TYPES, content_text, resource_text, result_value
from standfast.mcp.stdio import ProcessLimits
from standfast.model.canonical import Json
from standfast.model.capability import SideEffect, ToolCallContext, ToolManifest
from standfast.runtime.agent_session import Attachment
from standfast.runtime.data_dir import default_data_dir
from standfast.tools.context import AskPerson, PersonAnswer, RunContext
from standfast.tools.decorator import checked_approval
from standfast.tools.loop_threads import LoopThread
from standfast.tools.registered_tool import RegisteredTool

if TYPE_CHECKING:
    from standfast.mcp.sign_in import SignIn
    from standfast.model.capability import ApprovalPolicy

T = TypeVar("T")

DEFAULT_IDLE_S: Final = 60.0


class McpServer:
    """The tools of an MCP server, for `Agent(tools=[...])`. They are named `mcp__NAME__TOOL`.

    Args:
        target: the command line (or a list of its words) of a server on stdio, or the URL of one that speaks
            streamable HTTP.
        name: the name of the server, which is part of its tools' names.
        include: names of the tools to use, or patterns such as `"read_*"`; by default all.
        tools: your declarations about tools, by name or pattern: `{"write_*": McpTool(approval="manual")}`.
        approval: the approval policy of all tools that `tools` does not cover.
        trust_annotations: trust the server's word on which tools only read, and which are idempotent.
        pin_tools: ask a person when the server's tools change; without it, only when its command changes.
        env: the variables of a child process: a mapping, or names of variables to pass on.
        cwd: the working directory of a child process.
        memory_mb: the data memory limit of a child process, and of each process that it starts.
        cpu_s: the CPU time limit of each of these processes, in seconds.
        jail: start a child process in a jail, which shows it only the system's programs and the paths in
            `McpJail`. It needs bubblewrap.
        headers: the headers of each HTTP request, such as `{"Authorization": "Bearer ..."}`.
        auth: your own `httpx2.Auth`, which adds credentials to each HTTP request.
        sign_in: how to sign in with OAuth, if the server requires it and neither `auth` nor an Authorization
            header is given; see also `sign_in()`.
        sampling: let the server call the session's model; the ledger charges it to `mcp:NAME`.
        protocol: `"2025-11-25"`, `"2026-07-28"`, or `"auto"` to negotiate.
        media: the media types in results that your model accepts besides images, such as `["audio/wav"]`.
        availability: how the model reaches its tools; `"searchable"` suits servers with many.
        timeout_s: the time limit of a call, including the start of the server.
        idle_s: how long an unused server stays connected.
        connect_s: the time limit for a server to start and list its tools.
        data_dir: where the pin is stored; `STANDFAST_HOME` or `~/.standfast` by default.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        name: str,
        include: Iterable[str] | None = None,
        tools: Mapping[str, McpTool] | None = None,
        approval: ApprovalPolicy | None = None,
        trust_annotations: bool = False,
        pin_tools: bool = True,
        env: Mapping[str, str] | Iterable[str] = (),
        cwd: str | os.PathLike[str] | None = None,
        memory_mb: int | None = None,
        cpu_s: int | None = None,
        jail: McpJail | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        sign_in: McpSignIn | None = None,
        sampling: bool = False,
        protocol: Literal["auto", "2025-11-25", "2026-07-28"] = "auto",
        media: Iterable[str] = (),
        availability: str = "showcased",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        idle_s: float = DEFAULT_IDLE_S,
        connect_s: float = 30.0,
        data_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.name = check_server_name(name)
        for what, least, given in (
            ("timeout_s", "greater than 0", timeout_s),
            ("idle_s", "greater than 0", idle_s),
            ("connect_s", "greater than 0", connect_s),
            ("memory_mb", "at least 1", memory_mb),
            ("cpu_s", "at least 1", cpu_s),
        ):
            if given is not None and not given > 0:
                raise InvalidArgument(f"{what} of MCP server {name!r} must be {least}, got {given}")
        is_url = isinstance(target, str) and target.startswith(("http://", "https://"))
        if protocol not in ("auto", HANDSHAKE, STATELESS):
            raise InvalidArgument(
                f"protocol {protocol!r} of MCP server {name!r} is unknown",
                hint=f'use "auto", "{HANDSHAKE}" or "{STATELESS}"',
            )
        self._endpoint = McpEndpoint(
            name=name,
            command=() if is_url else _command(name, target),
            env=_variables(name, env),
            cwd=None if cwd is None else os.fspath(cwd),
            limits=ProcessLimits(memory_mb, cpu_s),
            jail=jail,
            url=str(target) if is_url else "",
            headers=dict(headers or {}),
            auth=auth,
            protocol=protocol,
            connect_s=connect_s,
            sampling=sampling,
        )
        has_credentials = auth is not None or "authorization" in {key.lower() for key in headers or {}}
        self._sign_in = None if has_credentials or not is_url else sign_in or McpSignIn()
        if isinstance(include, str):
            raise InvalidArgument(
                f"include of MCP server {name!r} must be a list, got {include!r}",
                hint='use include=["read_*"]',
            )
        common = McpTool(
            approval=None if approval is None else checked_approval(approval, f"mcp__{name}"),
            availability=availability,
            timeout_ms=int(timeout_s * 1000),
        )
        self._declared = Declarations(
            server=name,
            common=common,
            tools={own: one.over(common) for own, one in (tools or {}).items()},
            include=None if include is None else tuple(include),
            trust_annotations=trust_annotations,
        )
        self._pin_tools = pin_tools
        self._shown = frozenset((*IMAGE_TYPES, *(one.lower() for one in media)))
        self._idle_s = idle_s
        self._data_dir = None if data_dir is None else Path(data_dir).expanduser()
        self._connections: dict[tuple[asyncio.AbstractEventLoop, str], McpConnection] = {}
        self._pin: Pin | None = None
        self._tools: dict[str, AdvertisedTool] = {}
        self._revision = 0

    # A source of tools

    @property
    def source(self) -> str:
        return f"mcp:{self.name}"

    @property
    def revision(self) -> int:
        return self._revision

    def manifests(self) -> list[ToolManifest]:
        """Return the server's tools; on first use ever, start it and pin them. Blocks."""
        if self._pin is None:
            stored = self._file().read()
            if stored is None:
                self._first_use()
            else:
                self._adopt(stored)
        about = self._declared
        listed = [
            about.manifest(one.name, name, described(self.name, one), about.side_effect(one))
            for name, one in self._tools.items()
        ]
        for own, (contract, _) in resource_tools(self._declared, self._pin, self._tools).items():
            listed.append(
                about.manifest(own, contract.name, contract.description, SideEffect(contract.side_effect))
            )
        return listed

    def resolve(self, name: str) -> RegisteredTool | None:
        """Return one of the server's tools by its name here."""
        handler: Any
        if (tool := self._tools.get(name)) is not None:
            contract, handler = self._declared.capability(name, tool), partial(self._execute, tool)
        else:
            own = [
                one
                for one in resource_tools(self._declared, self._pin, self._tools).values()
                if one[0].name == name
            ]
            if not own:
                return None
            contract, handler = own[0][0], partial(self._execute_own, own[0][1])
        owner = f"MCP server {self.name}"
        return RegisteredTool(
            contract, handler, async_mode=True, owner=owner, wants_context=True, loop="runtime"
        )

    async def close(self) -> None:
        """Close the running loop's connections; the next call opens a new one."""
        loop = asyncio.get_running_loop()
        for key in [one for one in list(self._connections) if one[0] is loop]:
            await self._connections.pop(key).close()

    @property
    def connections(self) -> list[McpConnection]:
        """The open connections: one per recently used event loop and revision."""
        return [one for one in list(self._connections.values()) if not one.closed]

    # Trust

    def _file(self) -> PinFile:
        return PinFile(self._data_dir or default_data_dir(), self.name)

    def _adopt(self, pin: Pin) -> None:
        """Offer the tools of *pin* from now on."""
        left_out = frozenset(pin.examined().left_out or ())
        usable = {one.name: one for one in pin.tools if one.name not in left_out}
        names = tool_names(self.name, self._declared.included(usable))
        self._tools = {name: usable[own] for name, own in names.items()}
        self._pin = pin
        self._revision += 1

    def _first_use(self) -> None:
        """Connect to list the tools, and pin them. The loop that first calls one connects again."""

        async def listed() -> Pin:
            connection = await self._connected()
            await connection.close()
            return connection.advertised

        loop = LoopThread()
        try:
            self.trust(asyncio.run_coroutine_threadsafe(listed(), loop.loop).result())
        finally:
            loop.close()

    @property
    def target(self) -> str:
        """The command line or the URL."""
        return self._endpoint.url or shlex.join(self._endpoint.command)

    @property
    def pinned(self) -> Pin | None:
        """The pin, if the server was ever used here."""
        return self._pin or self._file().read()

    def changes(self, now: Pin) -> tuple[str, ...]:
        """Describe how the server differs from its pin."""
        pin = self._pin
        if pin is None or pin.digest != now.digest:  # another process may have trusted it meanwhile
            stored = self._file().read()
            if stored is not None and (pin is None or stored.digest == now.digest):
                self._adopt(stored)
                pin = stored
        if pin is None or pin.digest == now.digest:
            return ()
        if not self._pin_tools:
            now = msgspec.structs.replace(now, tools=pin.tools, features=pin.features)
        return pin.changes(now)

    def trust(self, now: Pin) -> None:
        """Pin the server as it is *now*, and offer its tools."""
        now = now.examined()
        self._file().write(now)
        self._adopt(now)

    def forget(self) -> bool:
        """Delete the pin; return False if there was none. The next use pins the server again."""
        self._pin = None
        return self._file().remove()

    def _relisted(self, now: Pin) -> None:
        """Adopt a tool list that the server has changed, unless a person must review it first."""
        if not self._pin_tools and not self.changes(now):
            self.trust(now)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Json] | None = None,
        *,
        ask: Ask | None = None,
    ) -> Json:
        """Call a tool by the server's own name for it, without an agent, and return the value.

        *ask* answers the server's questions; `"decline"` (or None) and `"cancel"` are passed to it as such.
        The time limit of the tool does not count the time that *ask* takes. Raise `McpServerChanged` if the
        server differs from its pin.
        """
        name = next((name for name, one in self._tools.items() if one.name == tool), None)
        if name is None:
            await asyncio.to_thread(self.manifests)
            name = next((name for name, one in self._tools.items() if one.name == tool), None)
        if name is None:
            raise UnknownTool(
                f"the MCP server {self.name} has no tool {tool[:80]!r}",
                hint=f"`standfast mcp inspect {self.name}` lists its tools",
            )
        context, limit_s = RunContext(None), self._declared.limit_s(tool)
        while True:
            call = ToolCallContext(name=name, kwargs=dict(arguments or {}))
            try:
                async with asyncio.timeout(limit_s) as limit:
                    asking = None if ask is None else _not_counted(limit, ask)
                    result = await self._execute(self._tools[name], context, call, asking)
            except TimeoutError:
                message = (
                    f"tool {tool[:80]!r} of MCP server {self.name!r} did not answer within {limit_s:g} s"
                )
                hint = "raise timeout_s if it needs longer"
                raise ToolError(Code.TIMEOUT_TOOL, message, hint=hint) from None
            if not isinstance(result, AskPerson):
                return result
            if not isinstance(result.state, dict) or "trust" in result.state:
                raise McpServerChanged(self.name, self.changes(await self.advertised()))
            if ask is None:
                raise McpServerFailed(self.name, f"asks a person: {result.message}")
            answer = await asyncio.to_thread(ask, result)
            if isinstance(answer, dict):
                person = PersonAnswer(answer, result.state)
            else:
                person = PersonAnswer({}, result.state, action="cancel" if answer == "cancel" else "decline")
            context = RunContext(None, answer=person)

    async def advertised(self) -> Pin:
        """Connect, and return what the server advertises now, without calling anything on it."""
        return (await self._connected()).advertised

    # Calls

    async def _execute(
        self,
        tool: AdvertisedTool,
        ctx: RunContext[Any],
        call: ToolCallContext,
        ask: AskNow | None = None,
    ) -> Any:
        """Execute a call of *tool*; return its value, or a question to a person."""
        by_position = dict(zip(tool.input_schema.get("properties", {}), call.args, strict=False))
        result = await self._call(tool, call.name, {**by_position, **call.kwargs}, ctx, ask)
        return result if isinstance(result, AskPerson) else result_value(self.name, result, ctx, self._shown)

    async def _call(
        self,
        tool: AdvertisedTool,
        name: str,
        arguments: dict[str, Any],
        ctx: RunContext[Any],
        ask: AskNow | None,
    ) -> Any:
        connection = await self._connected()
        if (question := await self._check_trust(connection.advertised, ctx)) is not None:
            return question
        if (current := self._tools.get(name)) is not tool and current != tool:
            raise ToolError(
                Code.MCP_SERVER_CHANGED,
                f"the MCP server {self.name} has another tool {tool.name!r} now, so it was not called",
                hint="read its description again, and call it with arguments that fit",
            )
        given: tuple[InputState, Answer] | None = None
        answer = ctx.answer
        if answer is not None and isinstance(answer.state, dict) and "input" in answer.state:
            said = answer.value if answer.action == "accept" else answer.action
            given = msgspec.convert(answer.state["input"], InputState), said
        try:
            result = await connection.call(tool.name, arguments, ctx, given, ask)
        except AskedMidway as error:
            if self._endpoint.protocol == STATELESS:
                raise ToolError(
                    Code.TOOL_ERROR,
                    f"the MCP server {self.name} asks a person in mid-call, which {STATELESS} does not allow",
                    hint=f'reach it with protocol="{HANDSHAKE}" or "auto"; it said: {error}',
                ) from None
            await self._connected(HANDSHAKE)
            if self._pin is not None:  # from now on, every process speaks 2025-11-25 to the server
                self._pin = msgspec.structs.replace(self._pin, protocol=HANDSHAKE)
                await asyncio.to_thread(self._file().write, self._pin)
            return await self._call(tool, name, arguments, ctx, ask)
        if isinstance(result, Asked):
            text = f"the MCP server {self.name} asks: {result.text}"
            state = {"input": msgspec.to_builtins(result.state)}
            return AskPerson(text, result.schema, state, declinable=True)
        return result

    async def _check_trust(self, now: Pin, ctx: RunContext[Any]) -> AskPerson | None:
        """Return the question whether to trust a changed server; None if it is unchanged or was accepted."""
        if self._pin is not None and self._pin.digest == now.digest:
            return None
        changes = await asyncio.to_thread(self.changes, now)
        if not changes:
            return None
        state = ctx.answer.state if ctx.answer is not None else None
        if isinstance(state, dict) and state.get("trust") == now.digest:
            await asyncio.to_thread(self.trust, now)
            return None
        listed = "; ".join(changes)
        text = f"the MCP server {self.name} has changed since it was trusted: {listed}"
        return AskPerson(f"{text}. Trust it as it is now?", state={"trust": now.digest})

    async def _connected(self, protocol: str = "") -> McpConnection:
        """Return the running loop's connection, opening one if there is none."""
        protocol = protocol or self._endpoint.protocol
        if protocol == "auto" and self._pin is not None and self._pin.protocol == HANDSHAKE:
            protocol = HANDSHAKE
        await _load_sdk(self._endpoint)
        loop = asyncio.get_running_loop()
        connection = next(
            (
                one
                for (home, spoken), one in list(self._connections.items())
                if home is loop and protocol in (spoken, one.advertised.protocol) and not one.closed
            ),
            None,
        )
        if connection is None:
            endpoint = dataclasses.replace(self._endpoint, protocol=protocol)
            if self._sign_in is not None:
                endpoint = dataclasses.replace(
                    endpoint, auth=_signing_in(endpoint, self._sign_in, self._credentials())
                )
            connection = McpConnection(endpoint, self._idle_s, self._relisted)
            for other in [one for one in list(self._connections) if one[0].is_closed()]:
                self._connections.pop(other, None)
            self._connections[loop, protocol] = connection
        return await connection.opened()

    # Signing in

    async def sign_in(
        self, open_page: Callable[[str], Awaitable[object] | object], *, scopes: Iterable[str] = ()
    ) -> bool:
        """Sign in through the page that *open_page* shows to a person; return False if no sign-in is needed.

        *scopes* are requested besides those that the server names and those granted before. The credentials
        are stored, encrypted, in the data directory.
        """
        if self._sign_in is None:
            raise InvalidArgument(
                f"MCP server {self.name!r} does not use sign-in",
                hint="only a server with a URL, and without auth= or an Authorization header, does",
            )
        asked = dataclasses.replace(
            self._sign_in, open_page=open_page, scopes=(*self._sign_in.scopes, *scopes)
        )
        await _load_sdk(self._endpoint)
        await self.close()
        auth = _signing_in(self._endpoint, asked, self._credentials(), anew=True)
        endpoint = dataclasses.replace(self._endpoint, auth=auth, connect_s=SIGN_IN_S)
        connection = McpConnection(endpoint, self._idle_s, self._relisted)
        try:
            await connection.opened()
        finally:
            await connection.close()
        return auth.signed_in

    async def sign_out(self) -> bool:
        """Delete the credentials, here and at the authorization server; return False if there were none."""
        file = self._credentials()
        if not file.path.exists():
            return False
        with suppress(Exception):  # the server may be gone; delete the credentials anyway
            await _signing_in(self._endpoint, self._sign_in or McpSignIn(), file).revoke()
        await self.close()
        return file.remove()

    def _credentials(self) -> CredentialFile:
        return CredentialFile(self._data_dir or default_data_dir(), self.name, self._endpoint.url)

    # Resources and prompts

    async def _execute_own(self, work: Any, ctx: RunContext[Any], call: ToolCallContext) -> Any:
        connection = await self._connected()
        if (question := await self._check_trust(connection.advertised, ctx)) is not None:
            return question
        result = await work(connection, *call.args, **call.kwargs)
        if isinstance(result, list):
            return result
        return "\n".join(resource_text(self.name, one, ctx, self._shown) for one in result.contents)

    async def resource(self, uri: str) -> Attachment:
        """Return one of the server's resources as an attachment for a turn."""
        work = partial(read_resource, uri=uri)
        result = await self._trusted(work, self._declared.limit_s("read_resource"))
        return as_attachment(self.name, result, uri)

    async def prompt(self, name: str, /, **arguments: str) -> list[str | Attachment]:
        """Return one of the server's prompts as the input of a turn."""

        async def get(connection: McpConnection) -> Any:
            return await sdk_request(self.name, connection.client.get_prompt(name, arguments))

        kept = _Kept()
        result = await self._trusted(get, self._declared.limit_s())
        pieces: list[str | Attachment] = []
        for message in result.messages:
            text = content_text(self.name, message.content, RunContext(None, attachments=kept))
            pieces += [text if message.role == "user" else f"[assistant] {text}", *kept.take()]
        return pieces

    async def _trusted(self, work: Any, limit_s: float) -> Any:
        """Await *work* on a connection; raise `McpServerChanged` if the server differs from its pin."""
        try:
            async with asyncio.timeout(limit_s):
                connection = await self._connected()
                if self.pinned is None:
                    await asyncio.to_thread(self.trust, connection.advertised)
                if changes := self.changes(connection.advertised):
                    raise McpServerChanged(self.name, changes)
                return await work(connection)
        except TimeoutError:
            raise McpServerFailed(
                self.name, f"did not answer within {limit_s:g} s", hint="raise timeout_s if it needs longer"
            ) from None

    def __repr__(self) -> str:
        return f"<McpServer {self.name}: {self.target}>"


class _Kept:
    """The attachments of a prompt, which become parts of the input."""

    def __init__(self) -> None:
        self._kept: list[Attachment] = []

    def keep(self, data: bytes, *, media_type: str, name: str | None = None, shown: bool = False) -> Any:
        self._kept.append(Attachment(data, media_type, name))

    def add_text(self, text: str) -> None:
        raise AssertionError("a prompt has no value that a text could be beside")

    async def read(self, digest: str) -> bytes | None:
        return None

    def take(self) -> list[Attachment]:
        kept, self._kept = self._kept, []
        return kept


async def _load_sdk(endpoint: McpEndpoint) -> None:
    """Import the SDK on another thread, because that takes a second; raise if it is not installed."""
    modules = ["standfast.mcp.complete_results", "standfast.mcp.stdio_calls"]
    if endpoint.url:
        modules += ["mcp.client.streamable_http", "standfast.mcp.sign_in"]
    if all(one in sys.modules for one in modules):
        return
    try:
        await asyncio.to_thread(lambda: [importlib.import_module(one) for one in modules])
    except ImportError:
        raise NotConfigured(
            f"MCP server {endpoint.name!r} needs the MCP SDK", hint="pip install 'standfast[mcp]'"
        ) from None


def _signing_in(
    endpoint: McpEndpoint, settings: McpSignIn, file: CredentialFile, *, anew: bool = False
) -> SignIn:
    """Return the `httpx2.Auth` that signs in with *settings* and stores the credentials in *file*."""
    from standfast.mcp.sign_in import SignIn

    return SignIn(endpoint.name, endpoint.url, settings, file, anew=anew)


def _command(name: str, target: str | Sequence[str]) -> tuple[str, ...]:
    try:
        words = shlex.split(target) if isinstance(target, str) else [str(one) for one in target]
    except ValueError as error:
        raise InvalidArgument(f"the command of MCP server {name!r} cannot be read: {error}") from None
    if not words or not words[0] or any("\0" in one for one in words):
        raise InvalidArgument(
            f"MCP server {name!r} has no command", hint="pass a command line, a list of words, or a URL"
        )
    return tuple(words)


def _variables(name: str, env: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Return the variables of a child process; those given by name take their values from this process."""
    if isinstance(env, Mapping):
        return {str(key): str(value) for key, value in env.items()}
    names = list(env)
    if missing := [one for one in names if one not in os.environ]:
        raise NotConfigured(
            f"MCP server {name!r} needs {missing[0]}, which is not set", hint="set it, or leave it out"
        )
    return {one: os.environ[one] for one in names}


def _not_counted(limit: asyncio.Timeout, ask: Ask) -> AskNow:
    """Return *ask* as a coroutine function; *limit* does not count the time that it takes."""

    async def asking(question: AskPerson) -> Answer | None:
        loop = asyncio.get_running_loop()
        left_s = (limit.when() or loop.time()) - loop.time()
        limit.reschedule(None)
        try:
            return await asyncio.to_thread(ask, question)
        finally:
            with suppress(RuntimeError):  # the server may have ended the call meanwhile
                limit.reschedule(loop.time() + left_s)

    return asking
