import itertools
import re


def split_outside(text: str) -> list[str]:
    """Split a text at commas outside braces."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def alternatives(inside: str) -> list[str]:
    """Return the expansions of a pair of braces: a range of numbers, or each part."""
    if found := re.fullmatch(r"(-?\d+)\.\.(-?\d+)", inside):
        first, last = int(found.group(1)), int(found.group(2))
        step = 1 if first <= last else -1
        return [str(number) for number in range(first, last + step, step)]
    return list(itertools.chain.from_iterable(brace_expand(part) for part in split_outside(inside)))


def brace_expand(pattern: str) -> list[str]:
    """Expand a pattern with braces to every text, as in a shell; an unclosed brace is plain text."""
    depth, opened = 0, pattern.find("{")
    for place in range(max(opened, 0), len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[place], 0)
        if opened >= 0 and depth == 0:
            head, inside, tail = pattern[:opened], pattern[opened + 1 : place], pattern[place + 1 :]
            return [head + a + b for a, b in itertools.product(alternatives(inside), brace_expand(tail))]
    return [pattern]
