"""Every protocol that the kernel asks of the world."""

from holdfast.ports.clock import Clock, SystemClock
from holdfast.ports.journal import CallJournal, PendingCall
from holdfast.ports.language_runtime import LanguageRuntime
from holdfast.ports.sandbox_store import SandboxStore, StoredSession, WaitingRun

__all__ = [
    "CallJournal",
    "Clock",
    "LanguageRuntime",
    "PendingCall",
    "SandboxStore",
    "StoredSession",
    "SystemClock",
    "WaitingRun",
]
