import re

Key = tuple[tuple[int, int, str], ...]


def natural_key(name: str) -> Key:
    """Return the sort key of a name: runs of digits count as numbers, before any other text."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(part), part) if part[0] in "0123456789" else (1, 0, part.lower()) for part in parts)


def natural_order(names: list[str], newest_first: bool = False) -> list[str]:
    """Sort names as people expect: `img9` comes before `img10`."""
    return sorted(names, key=lambda name: (natural_key(name), name), reverse=newest_first)
