"""Write docs/reference/error-codes.md: the table of every error code, made from `standfast.errors`.

usage: scripts/error_codes.py [--check]

A code that a class raises is explained by the class's docstring. `ADVICE` explains those that the machine, an engine or a tool
reports without a class of their own, and says what to do where the docstring does not.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from standfast import errors
from standfast.errors import STATUS_OF_CODE, Code, StandfastError, TurnCode

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "error-codes.md"
HEAD = """\
# Error codes

Every error has a stable `code`, a `message` and usually a `hint` that says what to do. The second column has the status of a run that
fails with the code; codes with the status `stopped` end turns. The third column has the exceptions that carry the code.
`scripts/error_codes.py` generates this table from the source.

| code | status | raised as | meaning |
|---|---|---|---|
"""
ADVICE: dict[str, str] = {
    Code.SYNTAX_ERROR: "The code cannot be parsed. Correct it at the span; nothing has run.",
    Code.TYPE_ERROR: "From `validate` only: the types at the span do not match. As a diagnostic of severity `info`: types "
    "were not checked, because the engine has no type checker here.",
    Code.UNAUTHENTICATED: "A server got no valid credential. Create a token with `standfast tokens create`; send it as "
    "`Authorization: Bearer TOKEN`.",
    Code.UNKNOWN_TOOL: "The name is neither bound nor granted. The hint suggests similar names.",
    Code.UNSUPPORTED_FEATURE: "The engine does not have this feature of the language. Write it another way, or choose "
    "[another engine](../guides/engines.md).",
    Code.RESULT_NOT_SERIALIZABLE: "The run's value is not JSON; the hint names its type. Convert it in the code. The "
    "session keeps the variables that the run bound.",
    Code.INVALID_ARGUMENT: "A value passed to Standfast or to a tool is invalid.",
    Code.SNAPSHOT_CORRUPT: "The snapshot was changed or cut, is too large, or was signed with another key.",
    Code.SNAPSHOT_VERSION_MISMATCH: "Another build of the engine made the state. Use that build, or reset the session.",
    Code.SNAPSHOT_CAPABILITY_MISMATCH: "The tools differ from those the snapshot or waiting run was made with. Register "
    "the same tools, unchanged.",
    Code.RUNTIME_ERROR: "Guest code raised an exception; the message names it.",
    Code.TOOL_ERROR: "A tool raised, or returned another type than it declares.",
    Code.IO_ERROR: "A file or the store could not be read or written. Run `standfast doctor`.",
    Code.SERIALIZE_ERROR: "A tool returned a value that is not JSON.",
    Code.TIMEOUT_WALL: "The run took longer than `timeout_ms` or `wall_ms`.",
    Code.TIMEOUT_CPU: "The code computed longer than `cpu_ms`.",
    Code.TIMEOUT_TOOL: "A tool took longer than its `timeout_ms`. A call that is not idempotent may have taken effect: "
    "check before you repeat it.",
    Code.MEMORY_EXCEEDED: "The code used more than `memory_mb`.",
    Code.STDOUT_EXCEEDED: "The code printed more than sixteen times `max_stdout_bytes`.",
    Code.EXTERNAL_CALLS_EXCEEDED: "The code made more than `max_external_calls` calls.",
    Code.STACK_OVERFLOW: "The code recursed deeper than `max_stack_depth`.",
    Code.REQUEST_TOO_LARGE: "The code, the inputs or the arguments of a call exceed their size limits.",
    Code.RESPONSE_TOO_LARGE: "A tool returned more than its `max_response_bytes`.",
    Code.RATE_LIMITED: "A tool or a model was called too often. Wait as long as the hint says.",
    Code.PERMISSION_DENIED: "The call is not granted, a person denied it, or its approval expired.",
    Code.CANCELLED: "The run or the turn was cancelled.",
    Code.WAITING_FOR_APPROVAL: "The run or the turn waits for a decision. Decide the approvals that the message names.",
    Code.INTERRUPTED: "A process died in the middle of a call or a run. The call may or may not have taken effect: check "
    "before you repeat it.",
    TurnCode.PROVIDER_ERROR: "The model call failed, and retrying cannot help or has not helped.",
    TurnCode.CONTEXT_OVERFLOW: "The frame is longer than the model's context window.",
    TurnCode.TURN_BUDGET: "The turn reached its limit of model calls, tokens or money.",
    TurnCode.NO_PROGRESS: "The model repeated failing calls without progress.",
    TurnCode.OUTPUT_INVALID: "The model's answer did not match the output type after all retries.",
    TurnCode.PLUGIN_ABORT: "A plugin ended the turn.",
}


def codes_of(kind: type[StandfastError]) -> tuple[list[str], str]:
    """Return the codes that the tree in the docstring of `standfast.errors` lists for *kind*, and its text on them."""
    found = re.search(rf"── {kind.__name__}\b(.*?)(?:──|\n\n)", errors.__doc__ or "", re.DOTALL)
    text = found[1] if found else ""
    known = {str(code) for code in (*Code, *TurnCode)}
    return [word for word in re.findall(r"[A-Z_]+", text) if word in known], text


def page() -> str:
    """Return the page as it must be."""
    raised: dict[str, list[type[StandfastError]]] = {}
    for one in vars(errors).values():
        if isinstance(one, type) and issubclass(one, StandfastError):
            for code in codes_of(one)[0] or [str(one.__dict__.get("code"))]:
                raised.setdefault(code, []).append(one)
    rows = []
    for code in (*Code, *TurnCode):
        classes = raised.get(code, [])
        names = ", ".join(f"`{one.__name__}`" for one in classes)
        described = [one for one in classes if one.__dict__.get("code") == code]
        said = [(one.__doc__ or "").split("\n\n")[0].strip().replace("\n    ", " ") for one in described]
        meaning = ADVICE.get(code) or " ".join(said)
        if not meaning:
            raise SystemExit(f"{code}: no class has this code, and ADVICE does not explain it")
        rows.append(f"| `{code}` | `{STATUS_OF_CODE.get(code, 'stopped')}` | {names} | {meaning} |")
    return HEAD + "\n".join(rows) + "\n"


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
