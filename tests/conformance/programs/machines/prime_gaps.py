from collections.abc import Iterator
from itertools import islice, pairwise, takewhile


def primes() -> Iterator[int]:
    """Yield all primes, from a sieve that grows on demand."""
    composites: dict[int, list[int]] = {}
    number = 2
    while True:
        factors = composites.pop(number, None)
        if factors is None:
            yield number
            composites[number * number] = [number]
        else:
            for factor in factors:
                composites.setdefault(number + factor, []).append(factor)
        number += 1


def records(limit: int) -> Iterator[tuple[int, int]]:
    """Yield each gap between primes below a limit that is wider than all before it, with its start."""
    widest = 0
    for low, high in pairwise(takewhile(lambda prime: prime < limit, primes())):
        if high - low > widest:
            widest = high - low
            yield widest, low


def prime_gaps(limit: int, most: int = 100) -> list[tuple[int, int]]:
    """Return the first record gaps between primes below a limit."""
    return list(islice(records(limit), most))
