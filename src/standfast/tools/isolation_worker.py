"""The worker process in which an isolated tool runs; the host's side is `standfast.tools.isolation`.

Frames are four bytes of length (big-endian) and JSON. A request names a function by file and qualified name
and contains the call's arguments; the response is `{"value": …}` or `{"error": {…}}`, with the nonce of the
request. The pipes are moved away from descriptors 0 and 1 before any user code is loaded, so that `print` and
`input` do not use them. A thread waits for the end of the request pipe, which means that the host has died,
and then ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from standfast.errors import Code, InvalidArgument, StandfastError, ToolError, ValueTooLarge
from standfast.model.canonical import Json
from standfast.tools.decorator import Tool
from standfast.tools.isolation import HEADER, FunctionLocation, IsolatedCall, ProcessAnswer, ProcessFailure
from standfast.tools.module_file import load_file
from standfast.tools.registered_tool import Signature
from standfast.tools.schema import read_signature
from standfast.tools.settlement import output_json
from standfast.tools.tracebacks import message_of, traceback_of

_MAX_MESSAGE_CHARS: Final = 4096


def main() -> None:
    """Serve calls until the host closes the pipe."""
    requests_fd, answers_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - for ever
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests_fd, requests), daemon=True).start()
    found: tuple[Callable[..., Any], Signature] | None = None
    while True:
        request = msgspec.json.decode(requests.get(), type=IsolatedCall)
        try:
            found = found or _find(request.target)
            function, signature = found
            bound = signature.bind(request.args, request.kwargs)
            value = function(*bound.args, **bound.kwargs)
            plain = _plain(asyncio.run(value) if inspect.iscoroutine(value) else value)
            answer = ProcessAnswer(nonce=request.nonce, value=plain)
        except BaseException as error:
            failure = ProcessFailure(
                type=type(error).__name__, message=message_of(error, "replace"), traceback=traceback_of(error)
            )
            if isinstance(error, StandfastError):
                code, message = str(error.code), _text(error.message)
                failure = msgspec.structs.replace(
                    failure, type=None, code=code, message=message, hint=error.hint
                )
            answer = ProcessAnswer(nonce=request.nonce, error=failure)
        data = msgspec.json.encode(answer)
        view = memoryview(HEADER.pack(len(data)) + data)
        while view:
            view = view[os.write(answers_fd, view) :]


def _receive(source: int, requests: queue.SimpleQueue[bytes]) -> None:
    with os.fdopen(source, "rb") as stream:
        while len(header := stream.read(HEADER.size)) == HEADER.size:
            requests.put(stream.read(HEADER.unpack(header)[0]))
    os._exit(0)


def _find(target: FunctionLocation) -> tuple[Callable[..., Any], Signature]:
    sys.path[:] = target.path
    try:
        found: Any = _load(target)
        for name in target.qualname.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {message_of(error, 'replace')}"
        raise ToolError(
            Code.TOOL_ERROR, f"{target.file} cannot be loaded to run {target.name}(): {what}"
        ) from None
    if not isinstance(found, Tool):
        return found, read_signature(found, target.name)
    if found.registered.digest != target.digest or found.registered.signature is None:
        raise ToolError(
            Code.TOOL_ERROR,
            f"{target.qualname} in {target.file} has changed since it was registered",
            hint="restart the program, so that the contract is read again",
        )
    return found.function, found.registered.signature


def _load(target: FunctionLocation) -> ModuleType:
    """Import the module by name if that finds the same file; otherwise load the file itself."""
    origin = None
    with contextlib.suppress(Exception):  # a parent that cannot be imported or is not a package
        spec = importlib.util.find_spec(target.module)
        origin = None if spec is None else spec.origin
        if origin is not None and not os.path.samefile(origin, target.file):
            origin = None
    return load_file(Path(target.file)) if origin is None else importlib.import_module(target.module)


def _plain(value: object) -> Json:
    try:
        return output_json(value)[0]
    except ValueTooLarge as error:
        raise ToolError(Code.RESPONSE_TOO_LARGE, f"the result is too large: {error.limit}") from None
    except InvalidArgument as error:
        raise ToolError(Code.SERIALIZE_ERROR, f"the tool's result is {_text(error.message)}") from None


def _text(text: str) -> str:
    return text[:_MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()


if __name__ == "__main__":
    main()
