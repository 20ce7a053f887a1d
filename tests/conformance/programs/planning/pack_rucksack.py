from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Item:
    """An item to pack."""

    name: str
    weight: int
    worth: int


def pack_rucksack(things: list[dict[str, Any]], capacity: int) -> dict[str, Any]:
    """Return the most valuable selection that fits; of equal ones the lightest, then the first by name."""
    items = [Item(**thing) for thing in sorted(things, key=lambda thing: thing["name"])]

    @cache
    def best(place: int, left: int) -> tuple[int, int, tuple[str, ...]]:
        """Return worth, negative weight, and names: the larger, the better."""
        if place == len(items):
            return (0, 0, ())
        item = items[place]
        without = best(place + 1, left)
        if item.weight > left:
            return without
        worth, weight, names = best(place + 1, left - item.weight)
        with_item = (worth + item.worth, weight - item.weight, (item.name, *names))
        return with_item if with_item[:2] >= without[:2] else without

    worth, weight, names = best(0, capacity)
    return {"worth": worth, "weight": -weight, "names": list(names)}
