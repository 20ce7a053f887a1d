import re
from dataclasses import dataclass


@dataclass
class Reader:
    """The tokens of an expression and the position up to which they have been read."""

    tokens: list[str]
    place: int = 0

    def peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.place += 1
        return token


def read_sum(reader: Reader) -> float:
    value = read_product(reader)
    while reader.peek() in ("+", "-"):
        value = value + read_product(reader) if reader.take() == "+" else value - read_product(reader)
    return value


def read_product(reader: Reader) -> float:
    value = read_power(reader)
    while reader.peek() in ("*", "/"):
        value = value * read_power(reader) if reader.take() == "*" else value / read_power(reader)
    return value


def read_power(reader: Reader) -> float:
    if reader.peek() == "-":
        reader.take()
        return -read_power(reader)
    base = read_atom(reader)
    if reader.peek() == "^":
        reader.take()
        return float(base ** read_power(reader))
    return base


def read_atom(reader: Reader) -> float:
    token = reader.take()
    if token == "(":
        value = read_sum(reader)
        if reader.take() != ")":
            raise ValueError("a bracket is not closed")
        return value
    if not token or not (token[0].isdigit() or token[0] == "."):
        raise ValueError(
            f"a number is missing before {token!r}" if token else "a number is missing at the end"
        )
    return float(token)


def calculate(expression: str) -> float | str:
    """Return the value of an expression with + - *
    ^ and brackets, or the error in it.
    """
    reader = Reader(re.findall(r"\d+\.?\d*|\.\d+|\S", expression))
    try:
        value = read_sum(reader)
        if reader.peek():
            raise ValueError(f"{reader.peek()!r} is not expected")
    except ZeroDivisionError:
        return "division by zero"
    except ValueError as error:
        return str(error)
    return value
