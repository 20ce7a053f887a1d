import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar


class Shape(ABC):
    """A plane figure. Its kinds are registered under the names of their classes."""

    kinds: ClassVar[dict[str, type["Shape"]]] = {}

    def __init_subclass__(cls) -> None:
        Shape.kinds[cls.__name__.lower()] = cls

    @abstractmethod
    def area(self) -> float: ...

    def describe(self) -> str:
        return f"{type(self).__name__} of {self.area():.2f}"


class Rectangle(Shape):
    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height

    def area(self) -> float:
        return self.width * self.height


class Square(Rectangle):
    def __init__(self, side: float) -> None:
        super().__init__(side, side)

    def describe(self) -> str:
        return f"{super().describe()}, {self.width:g} a side"


class Circle(Shape):
    def __init__(self, radius: float) -> None:
        self.radius = radius

    def area(self) -> float:
        return math.pi * self.radius**2


def shape_catalogue(figures: list[dict[str, Any]]) -> list[str]:
    """Describe figures, the largest first; unknown kinds come last."""
    shapes: list[Shape] = []
    unknown: list[str] = []
    for figure in figures:
        sizes = {name: size for name, size in figure.items() if name != "kind"}
        if kind := Shape.kinds.get(figure["kind"]):
            shapes.append(kind(**sizes))
        else:
            unknown.append(f"{figure['kind']}?")
    return [shape.describe() for shape in sorted(shapes, key=lambda shape: -shape.area())] + unknown
