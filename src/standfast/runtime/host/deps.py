"""The deps that a turn hands on to the sessions it makes and the turns it starts there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from standfast.runtime.host.at_work import AT_WORK

if TYPE_CHECKING:
    from standfast.runtime.live_session import LiveSession


def turn_deps(live: LiveSession) -> Any:
    """What the caller of the session's turn under way passed, or the session's own; None if neither.

    What a factory made is not handed on: it is held for one turn alone.
    """
    here = AT_WORK.get()
    if here is None or here.session_id != live.session_id:
        return live.deps
    return live.deps_of(here.turn_id)
