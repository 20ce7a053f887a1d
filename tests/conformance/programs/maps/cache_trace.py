class RecencyCache:
    """Keeps the values used most recently. A dictionary remembers the order in which keys came in."""

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
        """Keep a value; the key that had to go for it, if any."""
        self.values.pop(key, None)
        self.values[key] = value
        if len(self.values) <= self.capacity:
            return None
        oldest = next(iter(self.values))
        self.values.pop(oldest)
        return oldest


def cache_trace(capacity: int, steps: list[list[str | int]]) -> dict[str, object]:
    """What a cache answers to gets, which keys puts push out, and what is left, oldest first."""
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
