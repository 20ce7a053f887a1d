"""An MCP server on stdio in plain Python: it starts quickly and speaks both revisions.

usage: raw_server.py [--era 2026] [--log FILE] [--list FILE]

Each call is written to the log when it starts. The file given with --list, if it exists, replaces the tools.
"""

import json
import os
import sys
import time
from typing import Any

ARGS = sys.argv[1:]


def option(name: str) -> str:
    return ARGS[ARGS.index(name) + 1] if name in ARGS else ""


ERA, LOG, LIST = option("--era"), option("--log"), option("--list")
OBJECT = {"type": "object", "properties": {"x": {"type": "integer"}}}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOLS = [
    {"name": "echo", "description": "Return x.", "inputSchema": OBJECT},
    {"name": "read", "inputSchema": OBJECT, "annotations": {"readOnlyHint": True}},
    {"name": "wipe", "inputSchema": OBJECT, "annotations": {"destructiveHint": True}},
    {"name": "ask", "inputSchema": OBJECT},
    {"name": "ask_twice", "inputSchema": OBJECT},
    {"name": "picture", "inputSchema": OBJECT},
    {"name": "rich", "inputSchema": OBJECT},
    {"name": "fail", "inputSchema": OBJECT},
    {"name": "refuse", "inputSchema": OBJECT},
    {"name": "env", "inputSchema": OBJECT},
    {"name": "slow", "inputSchema": OBJECT},
    {"name": "progress", "inputSchema": OBJECT},
    {"name": "sample", "inputSchema": OBJECT},
    {"name": "grow", "inputSchema": OBJECT},
    {"name": "visit", "inputSchema": OBJECT},
    {"name": "use", "inputSchema": {"type": "object", "properties": {"code": {"type": "string"}}}},
    {
        "name": "typed",
        "inputSchema": OBJECT,
        "outputSchema": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
        },
    },
]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(request: dict[str, Any], result: dict[str, Any]) -> None:
    if ERA:
        result = {"resultType": "complete", **result}
    send({"id": request["id"], "result": result})


def receive() -> Any:
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    return json.loads(line)


def text(value: object) -> Any:
    return {"content": [{"type": "text", "text": str(value)}]}


def tools() -> Any:
    if LIST and os.path.exists(LIST):
        with open(LIST) as file:
            return json.load(file)
    return TOOLS


def tools_page(request: dict[str, Any]) -> dict[str, Any]:
    """Return the tools, ten per page."""
    page, listed = int((request.get("params") or {}).get("cursor", "0")), tools()
    more = {"nextCursor": str(page + 1)} if len(listed) > 10 * page + 10 else {}
    return {"tools": listed[10 * page : 10 * page + 10], **more}


def ask(request: dict[str, Any], number: int, message: str) -> Any:
    """Return the city that a person names; None if the call ends here."""
    if ERA:
        responses = request["params"].get("inputResponses") or {}
        state = json.loads(request["params"].get("requestState") or "[]")
        if refused := [one["action"] for one in responses.values() if one["action"] != "accept"]:
            answer(request, text(f"no city: {refused[0]}"))
            return None
        cities = [*state, *(one["content"]["city"] for one in responses.values())]
        if len(cities) >= number:
            return cities[number - 1]
        asked = {"mode": "form", "message": message, "requestedSchema": CITY}
        requests = {"where": {"method": "elicitation/create", "params": asked}}
        result = {
            "resultType": "input_required",
            "inputRequests": requests,
            "requestState": json.dumps(cities),
        }
        send({"id": request["id"], "result": result})
        return None
    question = f"q{number} of {request['id']}"
    send(
        {
            "id": question,
            "method": "elicitation/create",
            "params": {"message": message, "requestedSchema": CITY},
        }
    )
    while True:
        reply = receive()
        if reply.get("method") == "notifications/cancelled":
            cancelled.add(reply["params"]["requestId"])
        elif reply.get("id") == question:
            if reply["result"]["action"] != "accept":
                if request["id"] not in cancelled:
                    answer(request, text(f"no city: {reply['result']['action']}"))
                return None
            return reply["result"]["content"]["city"]
        elif "method" in reply and "id" in reply:
            handle(reply)


cancelled: set[Any] = set()
visits: list[str] = []


def call(request: dict[str, Any]) -> None:
    name, arguments = request["params"]["name"], request["params"].get("arguments") or {}
    if LOG:
        with open(LOG, "a") as file:
            file.write(json.dumps({"tool": name, "arguments": arguments, "pid": os.getpid()}) + "\n")
    match name:
        case "ask":
            if (city := ask(request, 1, "Which city?")) is not None:
                answer(request, text(f"weather in {city}"))
        case "ask_twice":
            first = ask(request, 1, "From where?")
            second = None if first is None else ask(request, 2, "To where?")
            if second is not None:
                answer(request, text(f"{first} to {second}"))
        case "picture":
            image = {"type": "image", "data": PNG, "mimeType": "image/png"}
            sound = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
            link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
            embedded = {"type": "resource", "resource": {"uri": "file:///b", "text": "of b"}}
            answer(request, {"content": [image, sound, link, embedded]})
        case "rich":  # structured content, a text that repeats it, and blocks that do not
            order = {"order": "A1", "cents": 500}
            repeated, note = text(json.dumps(order, indent=2)), text("swordfish " * arguments.get("x", 1))
            link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
            embedded = {"type": "resource", "resource": {"uri": "file:///b", "text": "of b"}}
            image = {"type": "image", "data": PNG, "mimeType": "image/png"}
            content = [*repeated["content"], *note["content"], link, embedded, image]
            answer(request, {"content": content, "structuredContent": order})
        case "refuse":
            send({"id": request["id"], "error": {"code": -32000, "message": "no database"}})
        case "fail":
            answer(request, {**text("no such order"), "isError": True})
        case "env":
            answer(request, text(json.dumps(sorted(os.environ))))
        case "use":  # run a line of Python, and return the value of `out`
            found: dict[str, Any] = {}
            try:
                exec(arguments["code"], found)
            except Exception as error:
                found["out"] = type(error).__name__
            answer(request, text(found["out"]))
        case "slow":
            time.sleep(float(arguments.get("x", 60)))
            answer(request, text("late"))
        case "progress":
            token = request["params"].get("_meta", {}).get("progressToken")
            done = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
            send({"method": "notifications/progress", "params": done})
            send({"method": "notifications/message", "params": {"level": "info", "data": "working"}})
            answer(request, text("done"))
        case "sample":
            hello = {"role": "user", "content": {"type": "text", "text": "say hello"}}
            send(
                {
                    "id": "s",
                    "method": "sampling/createMessage",
                    "params": {"messages": [hello], "maxTokens": 9},
                }
            )
            reply = receive()
            answer(request, text(reply.get("result", {}).get("content", {}).get("text", "refused")))
        case "grow":
            TOOLS.append({"name": "more", "inputSchema": OBJECT})
            send({"method": "notifications/tools/list_changed"})
            answer(request, text("grown"))
        case "visit":  # refuse until a person has opened a page, here on the second attempt
            visits.append(name)
            if len(visits) > 1:
                answer(request, text("visited"))
                return
            page = {
                "mode": "url",
                "elicitationId": "1",
                "url": "https://example.com/in",
                "message": "Open it.",
            }
            refused = {"code": -32042, "message": "open a page", "data": {"elicitations": [page]}}
            send({"id": request["id"], "error": refused})
        case "typed":
            answer(request, {"content": [], "structuredContent": {"n": arguments.get("x", "none")}})
        case _:
            answer(request, text(arguments.get("x")))


def handle(request: dict[str, Any]) -> None:
    method = request.get("method")
    known = {"tools": {"listChanged": not ERA}, "resources": {}, "prompts": {}}
    match method:
        case "initialize":
            info = {"name": "raw", "version": "1"}
            answer(request, {"protocolVersion": "2025-11-25", "capabilities": known, "serverInfo": info})
        case "server/discover" if ERA:
            found = {"supportedVersions": ["2026-07-28"], "capabilities": known}
            answer(request, {**found, "ttlMs": 0, "cacheScope": "private"})
        case "tools/list":
            answer(
                request,
                {**tools_page(request), "ttlMs": 0, "cacheScope": "private"} if ERA else tools_page(request),
            )
        case "tools/call":
            call(request)
        case "resources/list":
            page = int(request.get("params", {}).get("cursor", "0"))
            listed = [{"uri": f"file:///{'abc'[page]}", "name": "abc"[page], "mimeType": "text/plain"}]
            answer(request, {"resources": listed, **({"nextCursor": str(page + 1)} if page < 2 else {})})
        case "resources/templates/list":
            page = int(request.get("params", {}).get("cursor", "0"))
            more = {"nextCursor": str(page + 1)} if page < 1 or "--endless" in ARGS else {}
            one = {"uriTemplate": f"file:///{page}/{{name}}", "name": "template"}
            answer(request, {"resourceTemplates": [one], **more})
        case "resources/read" | "prompts/get" if "--silent" in ARGS:
            pass
        case "resources/read":
            uri = request["params"]["uri"]
            answer(
                request, {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"content of {uri}"}]}
            )
        case "prompts/get":
            given = request["params"]["arguments"]
            said = f"Review {given.get('file') or given['name']}."
            answer(request, {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]})
        case "ping":
            answer(request, {})
        case "notifications/cancelled":
            cancelled.add(request["params"]["requestId"])
        case _:
            if "id" in request and method is not None:
                send({"id": request["id"], "error": {"code": -32601, "message": f"no {method}"}})


if __name__ == "__main__":
    while True:
        handle(receive())
