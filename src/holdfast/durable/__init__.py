"""Turns that survive their process: execute-or-replay over a journal, under a lease."""

from holdfast.durable.driver import Committed, Driven, Ground, Parked, TurnDriver, Witness
from holdfast.durable.effects import Asks, EffectHost, Known, Prepared, Ready
from holdfast.durable.leases import LeaseKeeper
from holdfast.durable.replay import Replayed, replay

__all__ = [
    "Asks",
    "Committed",
    "Driven",
    "EffectHost",
    "Ground",
    "Known",
    "LeaseKeeper",
    "Parked",
    "Prepared",
    "Ready",
    "Replayed",
    "TurnDriver",
    "Witness",
    "replay",
]
