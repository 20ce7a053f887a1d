"""Turns that survive their process: execute-or-replay over a journal, under a lease."""

from standfast.durable.driver import Committed, Driven, DriverServices, Parked, TurnDriver, TurnObserver
from standfast.durable.effects import Asks, EffectHost, Known, Prepared, Ready
from standfast.durable.leases import LeaseKeeper
from standfast.durable.replay import Replayed, replay

__all__ = [
    "Asks",
    "Committed",
    "Driven",
    "DriverServices",
    "EffectHost",
    "Known",
    "LeaseKeeper",
    "Parked",
    "Prepared",
    "Ready",
    "Replayed",
    "TurnDriver",
    "TurnObserver",
    "replay",
]
