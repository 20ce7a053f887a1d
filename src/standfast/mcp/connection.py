"""A connection to an MCP server through the official SDK: calls, and the server's requests during them.

Theory of operation
-------------------
A connection lives on the event loop of the runtime that uses it, so a call never switches threads. The SDK
speaks both revisions. A server of 2026-07-28 answers a call with `input_required` and a state of its own; the
call is repeated with the answers, by any process. A server of 2025-11-25 asks in the middle of a call, so the
call is cancelled, and repeated once a person has answered; the same questions then get the same answers.

Rules
-----
1. A question to a person is never answered here: it is the result of the call (`Asked`).
2. A server's request is attributed to the only call in progress. While there are several it waits; if all of
   them ask, they are refused, because a question could belong to another session.
3. An abandoned call is cancelled at the server. A server that stops responding after that is terminated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import Code, McpServerFailed, StandfastError, ToolError
from standfast.mcp.contracts import MAX_TOOLS, AdvertisedTool, clean_text
from standfast.mcp.exchange import (
    MAX_QUESTION_CHARS,
    MAX_ROUNDS,
    Answer,
    Asked,
    AskedMidway,
    AskNow,
    Exchange,
    InputState,
    answer_schema,
    defaults_of,
    elicited,
    input_required,
    pages_to_open,
    question_text,
    responses_to,
    sampled,
)
from standfast.mcp.http import http_transport
from standfast.mcp.jail import McpJail
from standfast.mcp.pins import Pin
from standfast.mcp.stdio import Allowance, ProcessLimits, ServerProcess, stdio_transport
from standfast.tools.context import AskPerson, RunContext

if TYPE_CHECKING:
    import mcp_types as types
    from mcp import Client, MCPError
    from mcp.client.session import ClientRequestContext
    from pydantic import TypeAdapter

    from standfast.mcp.complete_results import CompleteResults
    from standfast.mcp.stdio_calls import StdioCalls

MAX_PAGES: Final = 200
PING_S: Final = 5.0
HANDSHAKE: Final = "2025-11-25"
STATELESS: Final = "2026-07-28"
_CLOSED: Final = ("Connection closed", "SSE stream ")
"""How the SDK's messages begin that report the end of the connection, or of the response."""
_REFUSALS: Final = ("decline", "cancel")
NO_BACK_CHANNEL: Final = "no back-channel for server-initiated requests"
"""How a server of the Python SDK refuses a call whose tool uses `ctx.elicit`, which 2026-07-28 lacks."""


@dataclass(frozen=True, slots=True)
class McpEndpoint:
    """How to reach a server: the command of a child process, or a URL."""

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    jail: McpJail | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    auth: Any = None
    protocol: str = "auto"
    connect_s: float = 30.0
    sampling: bool = False

    def launch(self) -> dict[str, Any]:
        """Return the part that is pinned, which has no values of variables or headers."""
        if self.url:
            return {"url": self.url}
        found: dict[str, Any] = {"command": list(self.command), "env": sorted(self.env)}
        return {**found, "cwd": self.cwd} if self.cwd else found


class McpConnection:
    """A connected server, created and used on one event loop.

    *changed* is called with what the server advertises after a change, on a separate thread.
    """

    def __init__(self, endpoint: McpEndpoint, idle_s: float, changed: Callable[[Pin], None]) -> None:
        self.endpoint = endpoint
        self.advertised = Pin(launch=endpoint.launch())
        self._is_closed = False
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self._client: Client | None = None
        self._process: ServerProcess | None = None
        self._stdio: StdioCalls | None = None
        self._results: CompleteResults | None = None
        self._allowance = Allowance()
        self._exchanges: list[Exchange] = []
        self._used_at = 0.0
        self._http_status = 0
        """The status of the last HTTP response that was an error."""
        self._timer: asyncio.TimerHandle | None = None
        self._stop = asyncio.Event()
        self._settled = asyncio.Event()
        self._asking = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run())

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    @property
    def pid(self) -> int | None:
        """The id of the server's process, if it is a child process."""
        return None if self._process is None else self._process.pid

    @property
    def is_stateless(self) -> bool:
        return self.client.protocol_version >= STATELESS

    async def opened(self) -> McpConnection:
        """Wait until the server is connected and has listed its tools; raise `McpServerFailed` otherwise."""
        await asyncio.shield(self._ready)
        return self

    @property
    def closed(self) -> bool:
        return self._is_closed or self._loop.is_closed()

    async def close(self) -> None:
        """Close the connection, and terminate the server if it is a child process."""
        self._stop.set()
        with suppress(asyncio.CancelledError, StandfastError):
            await asyncio.shield(self._running)

    # The life of a connection

    async def _run(self) -> None:
        try:
            protocol = self.endpoint.protocol
            await self._serve("legacy" if protocol == HANDSHAKE else protocol)
        except BaseException as error:
            failure = self._failure(error)
            if self._ready.done():
                return
            self._ready.set_exception(failure)
            self._ready.exception()  # mark it as retrieved, because the waiting task may be gone
        finally:
            self._is_closed = True
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()

    async def _serve(self, mode: str) -> None:
        """Connect, list the tools, and serve until `close`, the server's exit or the idle timeout."""
        self._stop.clear()
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self.endpoint.connect_s):
                    self._client = await stack.enter_async_context(self._new_client(mode))
                    if self._results is not None:
                        self._results.assumed = self.is_stateless
                    if mode == STATELESS:
                        await _discover(self._client, self.endpoint.name)
                    self.advertised = await self._list()
                self._ready.set_result(None)
                self._used_at = self._loop.time()
                self._watch_idle()
                tools = self.client.server_capabilities.tools
                if self.is_stateless and tools is not None and tools.list_changed:
                    self._spawn(self._listen())
                await self._stop.wait()
        except Exception as error:
            ended = self._process is not None and not isinstance(_leaf(error), TimeoutError | OSError)
            if mode != "auto" or self._ready.done() or not ended:
                raise
            await self._serve("legacy")  # some servers exit on any message before `initialize`

    def _new_client(self, mode: str) -> Client:
        import mcp_types as types
        from mcp import Client

        return Client(
            self._transport(),
            mode=mode,
            client_info=types.Implementation(name="standfast", version=version("standfast")),
            elicitation_callback=self._elicit,
            sampling_callback=self._sample if self.endpoint.sampling else None,
            logging_callback=self._log,
            log_level="info",
            message_handler=self._notified,
            cache=None,
        )

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[tuple[CompleteResults, Any]]:
        """Start or reach the server; yield the streams that the SDK's session reads and writes."""
        from standfast.mcp.complete_results import CompleteResults
        from standfast.mcp.stdio_calls import StdioCalls

        endpoint = self.endpoint
        async with contextlib.AsyncExitStack() as stack:
            incoming: Any
            outgoing: Any
            if endpoint.url:
                refused = partial(setattr, self, "_http_status")
                transport = http_transport(endpoint.url, endpoint.headers, endpoint.auth, refused)
                incoming, outgoing = await stack.enter_async_context(transport)
            else:
                self._process = ServerProcess(
                    endpoint.command,
                    endpoint.env,
                    endpoint.cwd,
                    endpoint.limits,
                    endpoint.jail,
                    self._allowance,
                )
                pipes = stdio_transport(self._process, self._stop)
                incoming, outgoing = await stack.enter_async_context(pipes)
                self._stdio = StdioCalls(incoming, outgoing)
            self._results = CompleteResults(incoming)
            yield self._results, outgoing

    def _failure(self, error: BaseException) -> StandfastError:
        """Convert an exception of the SDK or of a transport."""
        leaf = _leaf(error)
        if isinstance(problem := getattr(self.endpoint.auth, "problem", None), StandfastError):
            return problem  # the SDK may report only a closed connection
        if isinstance(leaf, StandfastError):
            return leaf
        name, hint = self.endpoint.name, None
        if self._allowance.problem:
            what = f"{self._allowance.problem} and was ended"
        elif isinstance(leaf, TimeoutError):
            what = f"did not answer within {self.endpoint.connect_s:g} s"
            hint = "raise connect_s if it needs longer to start"
        elif isinstance(leaf, OSError) and self.pid is None:
            what, hint = f"cannot be started: {leaf.strerror}: {leaf.filename!r}", "check the command"
            if " " in str(leaf.filename):
                hint = "give the program and each of its arguments separately"
        elif isinstance(leaf, asyncio.CancelledError):
            what = "was closed"
        else:
            what, hint = self._sdk_failure(leaf)
        return McpServerFailed(name, what, hint=hint)

    def _sdk_failure(self, error: BaseException) -> tuple[str, str | None]:
        """Return what is wrong, and what to do, for an exception of the SDK or of its HTTP client."""
        from httpx2 import TransportError
        from mcp import MCPError
        from pydantic import ValidationError

        said = clean_text(str(error), 300)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            place = ".".join(str(one) for one in first["loc"])
            return clean_text(f"broke the protocol: {error.title}: {place}: {first['msg']}", 300), None
        if isinstance(error, MCPError) and _is_closed(error):
            if self.endpoint.url:
                return f"closed the connection: {said}", None
            return f"exited{self._last_words()}", "run its command in a terminal to see why"
        if isinstance(error, MCPError) and self._http_status and "Server returned an error" in error.message:
            hint = "check its headers" if self._http_status in (401, 403) else "check the URL"
            return f"answered with the HTTP status {self._http_status}", hint
        if isinstance(error, MCPError):
            return f"answered with an error: {said}", None
        if isinstance(error, TransportError):
            return f"cannot be used: {said}", "check the URL, and that the server is running"
        return f"failed: {clean_text(type(error).__name__, 100)}: {said}", None

    def _last_words(self) -> str:
        """Return the error that a child process wrote to stderr, with a colon before it; "" if none."""
        words = "" if self._process is None else clean_text(self._process.last_words(), 300)
        return f": {words}" if words else ""

    def _watch_idle(self) -> None:
        """Close the connection after `idle_s` without calls; otherwise reschedule this check."""
        left = self._idle_s if self._exchanges else self._used_at + self._idle_s - self._loop.time()
        if left <= 0:
            self._stop.set()
        else:
            self._timer = self._loop.call_later(left, self._watch_idle)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What the server advertises

    async def _list(self) -> Pin:
        """Return what the server advertises now."""
        capabilities, tools = self.client.server_capabilities, dict[str, AdvertisedTool]()
        if capabilities.tools is not None:
            listed = await self.pages(self.client.list_tools, "tools", MAX_TOOLS + 1)
            if len(listed) > MAX_TOOLS:
                raise McpServerFailed(self.endpoint.name, f"lists more than {MAX_TOOLS} tools")
            for tool in listed:
                hints = tool.annotations and tool.annotations.model_dump(
                    by_alias=True, mode="json", exclude_none=True
                )
                advertised = AdvertisedTool(
                    name=tool.name,
                    title=tool.title or "",
                    description=tool.description or "",
                    input_schema=tool.input_schema,
                    output_schema=tool.output_schema,
                    annotations=hints or {},
                )
                tools.setdefault(tool.name, advertised)
        features = [name for name in ("prompts", "resources") if getattr(capabilities, name) is not None]
        found = Pin(
            launch=self.endpoint.launch(),
            tools=tuple(tools.values()),
            features=tuple(features),
            protocol=STATELESS if self.is_stateless else HANDSHAKE,
        )
        await asyncio.to_thread(lambda: found.digest)  # hashing thousands of tools takes a while
        return found

    async def pages(self, listing: Callable[..., Any], what: str, most: int) -> list[Any]:
        """Return the first *most* entries of one of the server's lists, fetched page by page."""
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await listing(cursor=cursor)
            found += getattr(page, what)
            cursor = page.next_cursor
            if cursor is None or len(found) >= most:
                return found[:most]
        words = what.replace("_", " ")
        raise McpServerFailed(self.endpoint.name, f"lists its {words} on more than {MAX_PAGES} pages")

    async def _notified(self, message: object) -> None:
        import mcp_types as types

        if isinstance(message, types.ToolListChangedNotification) and not self.is_stateless:
            self._spawn(self._list_again())

    async def _listen(self) -> None:
        """Follow changes at a server of 2026-07-28. If the server ends the stream, do not subscribe again."""
        with suppress(Exception):
            async with self.client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    await self._list_again()

    async def _list_again(self) -> None:
        with suppress(Exception):  # the next call reports the problem
            async with asyncio.timeout(self.endpoint.connect_s):
                self.advertised = await self._list()
            await asyncio.to_thread(self._changed, self.advertised)

    # Calls

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        context: RunContext[Any],
        given: tuple[InputState, Answer] | None,
        ask: AskNow | None = None,
    ) -> types.CallToolResult | Asked:
        """Call a tool; return its result, or the question that the server asks before it continues."""
        task = asyncio.current_task()
        assert task is not None
        exchange = Exchange(context, task, given, ask)
        self._allowance.renew()
        self._exchanges.append(exchange)
        try:
            return await self._exchange(exchange, tool, arguments)
        except asyncio.CancelledError:
            if exchange.asked is not None and exchange.task.uncancel() == 0:
                return exchange.asked  # the server's question ended the call
            self._spawn(self._check_health())
            raise
        except Exception as error:
            raise self._refused(error) from None
        finally:
            exchange.over.set()
            self._exchanges.remove(exchange)
            settled, self._settled = self._settled, asyncio.Event()
            settled.set()
            self._used_at = self._loop.time()

    def _refused(self, error: Exception) -> Exception:
        """Return a call's failure: the server's own message, or that the server is gone."""
        from mcp import MCPError

        leaf = _leaf(error)
        if isinstance(leaf, MCPError):
            if _is_closed(leaf):
                self._stop.set()
                if self.endpoint.url:
                    return self._failure(leaf)
                what = self._allowance.problem or f"exited during the call{self._last_words()}"
                return McpServerFailed(self.endpoint.name, what)
            if "Session terminated" in leaf.message:
                self._stop.set()
            said = clean_text(leaf.message, MAX_QUESTION_CHARS)
            if self.is_stateless and NO_BACK_CHANNEL in leaf.message:
                return AskedMidway(said)
            return ToolError(Code.TOOL_ERROR, f"the MCP server {self.endpoint.name} refused: {said}")
        return self._failure(leaf)

    async def _exchange(
        self, exchange: Exchange, tool: str, arguments: dict[str, Any]
    ) -> types.CallToolResult | Asked:
        """Make a call, and continue it as long as the server needs no person."""
        import mcp_types as types
        from mcp import MCPError

        responses, state = responses_to(exchange.given) if self.is_stateless else (None, None)
        if exchange.given is not None and exchange.given[0].opens_page and exchange.given[1] in _REFUSALS:
            message = f"the person did not open the page that the MCP server {self.endpoint.name} requires"
            raise ToolError(Code.TOOL_ERROR, message)

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            said = None if message is None else clean_text(message, MAX_QUESTION_CHARS)
            exchange.report("progress", {"progress": progress, "total": total, "message": said})

        repeated: list[tuple[str, Answer]] = []
        for attempt in range(MAX_ROUNDS):
            try:
                if self._stdio is not None and responses is None and state is None:
                    raw = await self._stdio.call(tool, arguments, progressed)
                    is_question = raw.get("resultType") == "input_required"
                    kind = types.InputRequiredResult if is_question else types.CallToolResult
                    result: Any = kind.model_validate(raw, by_name=False)
                else:
                    params = types.CallToolRequestParams(
                        name=tool, arguments=arguments, input_responses=responses, request_state=state
                    )
                    result = await self.client.session.send_request(  # the dispatcher checks the schema
                        types.CallToolRequest(params=params), _call_results(), progress_callback=progressed
                    )
            except MCPError as error:
                if error.code == types.URL_ELICITATION_REQUIRED:
                    return pages_to_open(exchange, self.endpoint.name, error)
                if state is None or repeated or "requeststate" not in error.message.lower():
                    raise
                responses, state, repeated = None, None, exchange.known()
                continue  # the server has lost its state's key, so it asks everything again
            if isinstance(result, types.CallToolResult):
                return result
            asked = await input_required(exchange, self.endpoint.name, result, self.endpoint.sampling)
            if isinstance(asked, Asked):
                if not repeated or repeated[0][0] != asked.text:
                    return asked
                responses, state = responses_to((asked.state, repeated.pop(0)[1]))
                continue
            responses, state = asked or None, result.request_state
            await asyncio.sleep(0 if asked else min(0.25, 0.05 * 2**attempt))
        raise McpServerFailed(self.endpoint.name, f"asked for input more than {MAX_ROUNDS} times in one call")

    async def _check_health(self) -> None:
        """Terminate a server that does not respond after a call was abandoned."""
        try:
            async with asyncio.timeout(PING_S):
                if self.is_stateless:
                    await self.client.session.send_discover(STATELESS)
                else:
                    await self.client.session.send_ping()
        except Exception as error:
            if isinstance(error, TimeoutError):
                self._stop.set()

    # What a server of 2025-11-25 asks in the middle of a call

    async def _asking_exchange(self) -> Exchange | None:
        """Return the asking call once it is the only one in progress; None if several ask at once."""
        self._asking += 1
        try:
            while len(self._exchanges) > 1 and self._asking < len(self._exchanges):
                await self._settled.wait()
            return self._exchanges[0] if len(self._exchanges) == 1 else None
        finally:
            self._asking -= 1

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Repeat a person's earlier answer; a new question ends the call."""
        import mcp_types as types

        exchange, text = await self._asking_exchange(), question_text(params)
        defaults = defaults_of(answer_schema(params)) if params.mode == "form" else None
        if exchange is None:
            message = "several calls ask at once; ask again when no other call is in progress"
            return types.ErrorData(code=types.INVALID_REQUEST, message=message)
        if exchange.ask is not None:
            asked = f"the MCP server {self.endpoint.name} asks: {text}"
            answer = await exchange.ask(AskPerson(asked, answer_schema(params)))
            return elicited("decline" if answer is None else answer, defaults)
        known, number = exchange.known(), len(exchange.heard)
        if number < len(known) and known[number][0] == text:
            exchange.heard.append(known[number])
            return elicited(known[number][1], defaults)
        if number < MAX_ROUNDS and exchange.asked is None:
            state = InputState(question=text, earlier=tuple(exchange.heard))
            exchange.asked = Asked(text, answer_schema(params), state)
            exchange.task.cancel()
            await exchange.over.wait()  # the server must read the cancellation before this answer
        return types.ElicitResult(action="cancel")

    async def _sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        import mcp_types as types

        exchange = await self._asking_exchange()
        if exchange is None:
            return types.ErrorData(code=types.INVALID_REQUEST, message="several calls ask at once")
        try:
            return await sampled(exchange, self.endpoint.name, params)
        except StandfastError as error:
            return types.ErrorData(code=types.INTERNAL_ERROR, message=error.message)

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        """Report a log message to the session with calls in progress; drop it if there are several."""
        if len({one.context.session_id for one in self._exchanges}) == 1:
            exchange = self._exchanges[-1]  # with several calls, the server does not say which one it means
            said = clean_text(str(params.data), MAX_QUESTION_CHARS)
            exchange.report("log", {"level": str(params.level), "message": said})


async def _discover(client: Client, server: str) -> None:
    """Ask a server of 2026-07-28 for its capabilities. The SDK's own request times out after 10 s."""
    import mcp_types as types
    from mcp import MCPError

    try:
        session = client.session
        session.adopt(await session.send_request(types.DiscoverRequest(), types.DiscoverResult))
    except (MCPError, RuntimeError, ValueError) as error:
        said = clean_text(str(error), 300)
        raise McpServerFailed(
            server, f"does not speak {STATELESS}: {said}", hint='use protocol="auto"'
        ) from None


@cache
def _call_results() -> TypeAdapter[types.CallToolResult | types.InputRequiredResult]:
    import mcp_types as types
    from pydantic import TypeAdapter

    return TypeAdapter(types.CallToolResult | types.InputRequiredResult)


def _is_closed(error: MCPError) -> bool:
    """Return whether the connection is closed. The code alone may also be that of a server's own error."""
    from mcp_types import CONNECTION_CLOSED

    return error.code == CONNECTION_CLOSED and error.message.startswith(_CLOSED)


def _leaf(error: BaseException) -> BaseException:
    """Return the first exception in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
