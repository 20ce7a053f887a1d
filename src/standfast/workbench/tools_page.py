"""Agents with their tools and plugins; and a trial call of a tool, with dispatch and approval."""

from __future__ import annotations

import asyncio
import copy
import json
import secrets
from typing import Any, Final

import htpy as h
from starlette.responses import Response

from standfast.errors import Code, ErrorObject, RequestRefused, StandfastError
from standfast.model.capability import AutoApproval, Capability
from standfast.model.session import SessionId
from standfast.plugins.hook import HOOKS
from standfast.protocols.standard.plugin import StandardProtocol
from standfast.providers.script import Reply, ScriptedCall
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.http_values import OpenSession
from standfast.runtime.sessions.session_plugins import HookInfo, PluginInfo
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.sessions import create_session
from standfast.server.turns import start_turn
from standfast.workbench.forms import field, json_object, read_form
from standfast.workbench.parts import NONE, data_table, empty, error_text, live_part, state_badge
from standfast.workbench.session_page import session_header, session_tabs
from standfast.workbench.session_reader import read_now
from standfast.workbench.shell import page, redirect
from standfast.workbench.words import count, duration, pretty

ROUTES: Final = Routes()


@ROUTES.add("GET", "/tools", Scope.READ)
async def tools_page(call: Call) -> Response:
    """Show each agent with its tools."""
    agents = list(call.server.agents.values())
    may_try = call.credential.allows(Scope.RUN)
    problems = await asyncio.gather(*map(_refreshed, agents))
    main = live_part(
        "catalog",
        "/tools",
        h.header(".top")[h.h1["Tools"], h.p(".muted")[count(len(agents), "agent")]],
        [_agent_html(agent, may_try, problem) for agent, problem in zip(agents, problems, strict=True)]
        or empty("No agents", ["Start the server with some: ", h.code["standfast serve APP"]]),
        kind=".stack",
    )
    return await page(call, title="Tools", place="tools", main=main, stream="/live?catalog=true")


async def _refreshed(agent: AgentDefinition[Any, Any]) -> ErrorObject | None:
    """Refresh the tools of connected sources, such as MCP servers; return the error if one failed."""
    if agent.registry.outdated():
        try:
            await asyncio.to_thread(agent.registry.refresh)
        except StandfastError as error:
            return error.error_object()
    return None


def catalog_of(call: Call) -> list[tuple[object, ...]]:
    """Return a value that changes whenever the tools page would."""
    return [
        (agent.name, agent.model_id, agent.registry.generation, agent.registry.outdated())
        for agent in call.server.agents.values()
    ]


def _agent_html(agent: AgentDefinition[Any, Any], may_try: bool, problem: ErrorObject | None) -> h.Element:
    tools = agent.registry.capabilities()
    plugins = [str(getattr(plugin, "id", type(plugin).__name__)) for plugin in agent.plugins]
    return h.section(".stack", id=f"agent-{agent.name}")[
        h.header(".top.start")[
            h.h2[agent.name],
            h.div(".facts")[
                h.span["Model ", h.b[agent.model_id]],
                h.span["Protocol ", h.b[agent.protocol.id]],
                bool(plugins) and h.span["Plugins ", h.b[", ".join(plugins)]],
                h.span["Queue ", h.b[agent.queue]],
            ],
        ],
        None if problem is None else error_text(problem),
        h.div(".stack.tight")[[_tool_html(tool, agent.name, may_try) for tool in tools]]
        if tools
        else h.p(".muted")["This agent has no tools of its own."],
    ]


_BRIEF_CHARS: Final = 60
"""A longer description may not fit on its tool's line."""


def _tool_html(tool: Capability, agent: str, may_try: bool) -> h.Element:
    """Render a tool as a line that expands to its contract and a form to try it."""
    limits = tool.limits
    facts = [
        ("Side effect", str(tool.side_effect).replace("_", " ")),
        ("After a crash", "runs again" if tool.idempotent else "never runs twice"),
        ("Time limit", "default" if limits.timeout_ms is None else duration(limits.timeout_ms)),
        ("Concurrent calls", str(limits.concurrency)),
    ]
    if isinstance(tool.approval_policy, AutoApproval):
        facts.append(("Approved by rule", tool.approval_policy.auto.rule))
    return h.details(".call", id=f"tool-{agent}-{tool.name}")[
        h.summary[
            h.span(".name")[tool.name],
            h.span(".brief", dir="auto")[tool.description],
            tool.approval_policy != "none" and state_badge("waiting", "needs approval"),
        ],
        h.div(".inside")[
            len(tool.description) > _BRIEF_CHARS and h.p(".plain", dir="auto")[tool.description],
            h.div(".facts")[[h.span[f"{name} ", h.b[text]] for name, text in facts]],
            h.p(".label")["Input"],
            h.pre(".value", tabindex="0", aria_label="Schema of the input")[
                json.dumps(tool.input_schema, indent=2, ensure_ascii=False)
            ],
            may_try and _try_form(tool, agent),
        ],
    ]


def _try_form(tool: Capability, agent: str) -> h.Element:
    properties: dict[str, Any] = tool.input_schema.get("properties", {})
    return h.form(".stack", hx_post="/tools/try", hx_swap="none")[
        h.input(type="hidden", name="agent", value=agent),
        h.input(type="hidden", name="tool", value=tool.name),
        h.label[
            h.span["Try it with these arguments"],
            h.textarea(".code", name="arguments", rows=str(min(8, len(properties) + 2)), spellcheck="false")[
                json.dumps({name: _example(schema) for name, schema in properties.items()}, indent=2)
            ],
        ],
        h.p(".muted.small")["Limits, approval and the journal apply, as if a model had made the call."],
        h.div[h.button["Try it"]],
    ]


def _example(schema: Any) -> Any:
    """Return a value to start from: the default, the first choice, or an empty value of the type."""
    if not isinstance(schema, dict):
        return ""
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    empty_values: dict[str, Any] = {
        "integer": 0, "number": 0, "boolean": False, "array": [], "object": {}, "null": None
    }  # fmt: skip
    return empty_values.get(str(schema.get("type")), "")


@ROUTES.add("POST", "/tools/try", Scope.RUN, body=bytes)
async def try_tool(call: Call) -> Response:
    """Call a tool in a new session, as if the model had requested it, and redirect to the session."""
    form = read_form(call)
    name, tool = field(form, "agent"), field(form, "tool")
    agent = call.server.agents.get(name)
    if agent is None or all(one.name != tool for one in agent.registry.capabilities()):
        raise RequestRefused(404, Code.UNKNOWN_TOOL, f"agent {name[:80]!r} has no tool {tool[:80]!r}")
    arguments = json_object(field(form, "arguments") or "{}", "the arguments")
    call.body = OpenSession(session_id=SessionId(f"try-{secrets.token_hex(4)}"), agent=name)
    head = await create_session(call)
    caller = calling_agent(agent, tool, arguments)
    session = await call.runtime.session(head.session_id, agent=caller)
    await start_turn(call, session, f"Try {tool}")
    return redirect(f"/sessions/{head.session_id}")


def calling_agent(
    agent: AgentDefinition[Any, Any], tool: str, arguments: dict[str, Any]
) -> AgentDefinition[Any, Any]:
    """Return a copy of *agent* whose model requests one call; tools, plugins and limits are unchanged."""
    caller = copy.copy(agent)
    called = ScriptedCall(name=tool, arguments=arguments)
    replies = [Reply(tool_calls=(called,)), Reply(text="The tool has answered.")]
    caller.model = ScriptedModel(replies, strict=False, name="try")
    caller.protocol = StandardProtocol()
    caller.output_type = None
    return caller


# Plugins of a session


@ROUTES.add("GET", "/sessions/{session_id}/plugins", Scope.READ)
async def plugins_page(call: Call) -> Response:
    """Show a session's plugins: what each adds, and all hooks in execution order."""
    head = await call.head()
    now = await read_now(call.runtime, head.session_id)
    installed: list[PluginInfo] = []
    hooks: list[HookInfo] = []
    if head.code is None and head.agent in call.server.agents:
        plugins = (await call.working_session()).plugins
        installed, hooks = await plugins.installed(), await plugins.hooks()
    if installed:
        found: h.Node = [_plugins_table(installed), _hooks_table(hooks)]
    elif head.code is not None:
        found = empty("No plugins", "A session that runs code without a model has no plugins.")
    else:
        found = empty("Plugins unknown", "This server does not have the agent of this session.")
    path = f"/sessions/{head.session_id}/plugins"
    main = live_part(
        "plugins",
        path,
        session_header(now, call.runtime.now_ms()),
        session_tabs(head.session_id, "plugins"),
        found,
        kind=".stack",
    )
    stream = f"/live?session={head.session_id}"
    return await page(call, title=f"Plugins of {head.session_id}", place="sessions", main=main, stream=stream)


_PLUGIN_COLUMNS: Final = ("Plugin", "Version", "Options", "Tools", "Actions", "Slots")


def _plugins_table(installed: list[PluginInfo]) -> h.Element:
    rows: list[list[h.Node]] = [
        [
            [h.strong[one.id], one.summary and h.div(".muted.small")[one.summary]],
            one.version,
            [h.div[h.code[f"{name} = {pretty(value)}"]] for name, value in one.options.items()] or NONE,
            ", ".join(one.tools) or NONE,
            ", ".join(one.actions) or NONE,
            ", ".join(one.slots) or NONE,
        ]
        for one in installed
    ]
    return data_table("Plugins", _PLUGIN_COLUMNS, rows, ".many")


def _hooks_table(hooks: list[HookInfo]) -> h.Node:
    used = {kind: [one for one in hooks if one.kind == kind] for kind in HOOKS}
    rows: list[list[h.Node]] = [
        [
            h.code[kind],
            " → ".join(
                f"{one.plugin_id} ({one.priority:+d})" if one.priority else one.plugin_id for one in found
            ),
            str(HOOKS[kind].on_failure).replace("_", " "),
        ]
        for kind, found in used.items()
        if found
    ]
    if not rows:
        return h.p(".muted")["These plugins have no hooks."]
    return h.section(".stack")[
        h.h2["Hooks, in execution order"], data_table("Hooks", ("Hook", "Plugins", "If one fails"), rows)
    ]
