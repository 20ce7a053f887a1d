"""Every protocol that the kernel asks of the world."""

from standfast.ports.clock import Clock, SystemClock
from standfast.ports.journal import CallJournal, PendingCall
from standfast.ports.language_runtime import LanguageRuntime

__all__ = [
    "CallJournal",
    "Clock",
    "LanguageRuntime",
    "PendingCall",
    "SystemClock",
]
