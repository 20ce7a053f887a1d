class Garage:
    """Places for cars, assigned from the lowest free number; each hour begun is charged."""

    def __init__(self, places: int, rate: int) -> None:
        self._free = list(range(1, places + 1))
        self._parked: dict[str, tuple[int, int]] = {}
        self._rate = rate
        self.income = 0

    @property
    def parked(self) -> dict[str, int]:
        return {plate: place for plate, (place, _) in sorted(self._parked.items())}

    def enter(self, plate: str, minute: int) -> str:
        if plate in self._parked:
            return f"{plate} is inside already"
        if not self._free:
            return "full"
        place = min(self._free)
        self._free.remove(place)
        self._parked[plate] = (place, minute)
        return f"place {place}"

    def leave(self, plate: str, minute: int) -> str:
        if plate not in self._parked:
            return f"{plate} is not inside"
        place, since = self._parked[plate]
        del self._parked[plate]
        self._free.append(place)
        cost = self._rate * -(-(minute - since) // 60)
        self.income += cost
        return f"pays {cost}"


def parking_garage(places: int, rate: int, events: list[tuple[str, str, int]]) -> dict[str, object]:
    """Return the garage's answers to cars that come and go, the cars left in it, and its income."""
    garage = Garage(places, rate)
    actions = {"in": garage.enter, "out": garage.leave}
    answers = [actions[kind](plate, minute) for kind, plate, minute in events]
    return {"answers": answers, "parked": garage.parked, "income": garage.income}
