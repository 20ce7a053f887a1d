from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict


class Section(TypedDict):
    title: str
    parts: list["Section"]


class OutlineWriter:
    """A writer of headings with the numbers of their enclosing sections."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers: list[int] = [0]

    @contextmanager
    def section(self, title: str) -> Iterator[None]:
        self._numbers[-1] += 1
        label = ".".join(map(str, self._numbers))
        self.lines.append(f"{'  ' * (len(self._numbers) - 1)}{label} {title}")
        self._numbers.append(0)
        try:
            yield
        finally:
            self._numbers.pop()


def outline(parts: list[Section]) -> list[str]:
    """Return the numbered headings of a document, indented by depth."""
    writer = OutlineWriter()

    def write(inner: list[Section]) -> None:
        for part in inner:
            with writer.section(part["title"]):
                write(part["parts"])

    write(parts)
    return writer.lines
