"""What a cell sees of the world: time, random numbers and outside values, all of them from its request.

Rules
-----
1. The clock stands still between answers, and random numbers come from the seed: a cell that is rerun sees
   the same. The engine keeps its own random state in its dumps, so only its seed is made here.
2. The address that an object without a `__repr__` prints may differ between a warm worker and a loaded one.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any, Final

from standfast.ports.cell_stepper import StepperHost

OS_POLICY: Final = {
    "datetime": "call_host",
    "timezone": "utc",
    "random_start": "call_host",
    "sleep_system_max": float("inf"),
}
"""What the engine asks the host for; it is part of its dumps. Unless told, it cuts sleeps to ten seconds."""
MAX_RANDOM_BYTES: Final = 64 << 10


class Surroundings:
    """The time, random numbers and outside values of one cell. `draws` counts the random numbers given."""

    __slots__ = ("_host", "draws", "load")

    def __init__(self, host: StepperHost, draws: int = 0) -> None:
        self._host = host
        self.load = host.load
        self.draws = draws

    def random_bytes(self, count: int) -> bytes:
        """Return the next *count* bytes, unpredictable without the seed."""
        self.draws += 1
        return hashlib.shake_256(f"{self.draws}:{self._host.request.seed}".encode()).digest(count)

    def moment(self, name: str, args: tuple[Any, ...]) -> Any:
        """Return what one of the engine's clocks shows."""
        now_s = self._host.now_ms / 1000
        if name == "time.time":
            return now_s
        zone = args[0] if args else None
        now = datetime.fromtimestamp(now_s, UTC)
        if name == "date.today":
            return now.date()
        return now.replace(tzinfo=None) if zone is None else now.astimezone(zone)
