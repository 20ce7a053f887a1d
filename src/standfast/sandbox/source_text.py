"""Whether code is text at all, which every engine asks first."""

from __future__ import annotations

from standfast.errors import Code, InvalidArgument
from standfast.model.diagnostic import Diagnostic, Severity

_SURROGATE = "the code holds a lone surrogate"


def require_text(code: str) -> None:
    """Refuse what cannot be written as UTF-8."""
    if not is_text(code):
        raise InvalidArgument(_SURROGATE)


def is_text(code: str) -> bool:
    if code.isascii():
        return True
    try:
        code.encode()
    except UnicodeEncodeError:
        return False
    return True


def no_text() -> Diagnostic:
    """What is wrong with code that is no text."""
    return Diagnostic(severity=Severity.ERROR, code=Code.SYNTAX_ERROR, message=_SURROGATE)
