"""Turns that survive their process: execute-or-replay over a journal, under a lease."""

from standfast.durable.driver import Committed, Driven, Parked, TurnDriver, TurnObserver
from standfast.durable.effects import EffectHost, EffectReady, EffectSettled, EffectWaits, Prepared
from standfast.durable.journal import DriverServices, LeaseKeeper, Replayed, TurnJournal, replay

__all__ = [
    "Committed",
    "Driven",
    "DriverServices",
    "EffectHost",
    "EffectReady",
    "EffectSettled",
    "EffectWaits",
    "LeaseKeeper",
    "Parked",
    "Prepared",
    "Replayed",
    "TurnDriver",
    "TurnJournal",
    "TurnObserver",
    "replay",
]
