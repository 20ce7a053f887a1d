"""The refusal that all built-in tools share."""

from __future__ import annotations

from standfast.errors import CallerError, Code


class AccessDenied(CallerError):
    """A path or an address that was not granted. Nothing was opened and nothing was sent."""

    code = Code.PERMISSION_DENIED
