"""Test support for users and this project: a fake clock, servers, crash points, the store contract suite.

A name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "standfast.testing.clock": "FakeClock",
        "standfast.testing.crash_points": "CrashPoints",
        "standfast.testing.servers.anthropic_server": "AnthropicServer",
        "standfast.testing.servers.chat_server": "ChatServer",
        "standfast.testing.servers.google_server": "GoogleServer",
        "standfast.testing.servers.openai_server": "OpenAIServer",
        "standfast.testing.session_stores": "SessionStoreContract is_dead",
    },
)

if TYPE_CHECKING:
    from standfast.testing.clock import FakeClock as FakeClock
    from standfast.testing.crash_points import CrashPoints as CrashPoints
    from standfast.testing.servers.anthropic_server import AnthropicServer as AnthropicServer
    from standfast.testing.servers.chat_server import ChatServer as ChatServer
    from standfast.testing.servers.google_server import GoogleServer as GoogleServer
    from standfast.testing.servers.openai_server import OpenAIServer as OpenAIServer
    from standfast.testing.session_stores import SessionStoreContract as SessionStoreContract
    from standfast.testing.session_stores import is_dead as is_dead
