from typing import Literal


def pad(cell: str, width: int, align: Literal["left", "right", "center"]) -> str:
    """Pad a cell with spaces, as its column is aligned."""
    match align:
        case "left":
            return f"{cell:<{width}}"
        case "right":
            return f"{cell:>{width}}"
        case "center":
            left = (width - len(cell)) // 2
            return " " * left + cell + " " * (width - len(cell) - left)


def text_table(rows: list[list[str]], aligns: list[Literal["left", "right", "center"]]) -> str:
    """Format rows as a text table; short rows are padded with empty cells, trailing spaces are removed."""
    full = [[*row, *[""] * (len(aligns) - len(row))] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*full, strict=True)]
    lines = [
        " | ".join(pad(cell, width, align) for cell, width, align in zip(row, widths, aligns, strict=True))
        for row in full
    ]
    return "\n".join(line.rstrip() for line in lines)
