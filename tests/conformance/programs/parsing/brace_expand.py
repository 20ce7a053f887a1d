import itertools
import re


def split_outside(text: str) -> list[str]:
    """The parts of a text between commas that no braces enclose."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def alternatives(inside: str) -> list[str]:
    """What stands for a pair of braces: a range of numbers, or each part."""
    if found := re.fullmatch(r"(-?\d+)\.\.(-?\d+)", inside):
        first, last = int(found.group(1)), int(found.group(2))
        step = 1 if first <= last else -1
        return [str(number) for number in range(first, last + step, step)]
    return list(itertools.chain.from_iterable(brace_expand(part) for part in split_outside(inside)))


def brace_expand(pattern: str) -> list[str]:
    """Every text that a pattern with braces stands for, as in a shell; an open brace is plain text."""
    depth, opened = 0, pattern.find("{")
    for place in range(max(opened, 0), len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[place], 0)
        if opened >= 0 and depth == 0:
            head, inside, tail = pattern[:opened], pattern[opened + 1 : place], pattern[place + 1 :]
            return [head + a + b for a, b in itertools.product(alternatives(inside), brace_expand(tail))]
    return [pattern]
