class RecencyCache:
    """A cache of the most recently used values. A dictionary keeps the order in which keys were inserted."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.values: dict[str, int] = {}

    def get(self, key: str) -> int | None:
        if key not in self.values:
            return None
        value = self.values.pop(key)
        self.values[key] = value
        return value

    def put(self, key: str, value: int) -> str | None:
        """Store a value; return the key that was evicted for it, if any."""
        self.values.pop(key, None)
        self.values[key] = value
        if len(self.values) <= self.capacity:
            return None
        oldest = next(iter(self.values))
        self.values.pop(oldest)
        return oldest


def cache_trace(capacity: int, steps: list[list[str | int]]) -> dict[str, object]:
    """Return the results of gets, the keys evicted by puts, and the remaining keys, oldest first."""
    cache = RecencyCache(capacity)
    answers: list[int | None] = []
    evicted: list[str] = []
    for step in steps:
        match step:
            case ["get", str(key)]:
                answers.append(cache.get(key))
            case ["put", str(key), int(value)]:
                gone = cache.put(key, value)
                if gone is not None:
                    evicted.append(gone)
            case _:
                raise ValueError(f"unknown step {step!r}")
    return {"answers": answers, "evicted": evicted, "left": list(cache.values)}
