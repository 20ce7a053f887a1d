from collections import Counter
from math import factorial


def arrangements(counts: Counter[str]) -> int:
    """Return the number of distinct orders of the letters."""
    total = factorial(sum(counts.values()))
    for count in counts.values():
        total //= factorial(count)
    return total


def permutation_rank(word: str) -> str:
    """Return the rank of a word among the sorted distinct arrangements of its letters, from 1, as text."""
    left = Counter(word)
    rank = 1
    for letter in word:
        for other in sorted(left):
            if other >= letter:
                break
            if left[other]:
                left[other] -= 1
                rank += arrangements(left)
                left[other] += 1
        left[letter] -= 1
    return str(rank)
