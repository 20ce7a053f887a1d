"""Finding the cells of a reply while it streams."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from standfast.model.code import Language
from standfast.protocols.code.cell_finder import MAX_OPENING, CellFinder, FoundCell, find_cells

PIECES = [
    "a", "text ", " ", "  ", "    ", "\t", "\n", "\n", "\n\n", "\r\n", "\r", "`", "``", "```", "````", "~~~",
    "```python\n", "```py", "\n```\n", "\n````markdown\n", "\n````\n", "~~~ts\n", "```json\n", "```bash x\n",
    "> ", ">", "\n> ", "\n> ```python\n> x\n", "> ```\n", "- ", "1. ", "10) ", "* ", "\n- ```python\n",
    "   ```python\n   x = 1\n   ```\n", "print(1)", "python", "js", "{", "title=\"x\"", "\ud800", "é",
]  # fmt: skip


def found(text: str, language: Language = Language.PYTHON) -> tuple[str, list[str]]:
    """Return the prose, and the code of each cell."""
    prose, cells = find_cells(text, language)
    return prose, [cell.code for cell in cells]


def streamed(pieces: list[str]) -> tuple[list[str], tuple[FoundCell, ...]]:
    """Return the text that is shown after each piece, and the cells."""
    finder = CellFinder(Language.PYTHON)
    shown = [finder.feed(piece) for piece in pieces]
    shown.append(finder.end())
    return shown, tuple(finder.cells)


# Recognizing a cell


def test_a_cell_is_removed_from_the_prose() -> None:
    """Seed: cells are not part of the prose."""
    prose, cells = find_cells("I look.\n\n```python\nx = 1\nprint(x)\n```\n\nDone.\n", Language.PYTHON)
    assert prose == "I look.\n\nDone.\n"
    assert cells == (FoundCell("python", "x = 1\nprint(x)", True),)


def test_a_reply_that_is_only_a_cell_has_no_prose() -> None:
    """Ours: a step that only acts shows nothing."""
    assert found("```python\nx\n```") == ("", ["x"])
    assert found("\n\n```python\nx\n```\n\n") == ("", ["x"])


def test_text_without_a_cell_is_shown_unchanged() -> None:
    """Ours: an answer is not reformatted."""
    text = "\n# Title  \r\n\r\n- a\n  - b\n\n```json\n{}\n```\n\n\n>\n> q\n\n"
    assert found(text) == (text, [])


@pytest.mark.parametrize(
    "tag", ["python", "py", "python3", "py3", "Python", " python", "{python}", "{.python}"]
)
def test_every_tag_for_python_is_recognized(tag: str) -> None:
    """Ours: models spell the tag in many ways."""
    assert find_cells(f"```{tag}\nx\n```", Language.PYTHON)[1] == (FoundCell("python", "x", True),)


@pytest.mark.parametrize("tag", ["typescript", "ts", "javascript", "js", "tsx", "JSX"])
def test_every_tag_for_typescript_is_recognized(tag: str) -> None:
    """Ours: an engine that runs JavaScript in a TypeScript session need not distinguish them."""
    assert find_cells(f"~~~{tag}\nx\n~~~", Language.TYPESCRIPT)[1] == (FoundCell("typescript", "x", True),)


@pytest.mark.parametrize("tag", ["bash", "Ruby", "c", "c++", "c#", "R", "ts", "powershell"])
def test_code_in_another_language_is_a_cell_too(tag: str) -> None:
    """Ours: a model that acts in the wrong language gets an error, so the cell must be found."""
    (cell,) = find_cells(f"```{tag}\nx\n```", Language.PYTHON)[1]
    assert cell.language == {"ts": "typescript"}.get(tag, tag.lower())


@pytest.mark.parametrize("tag", ["cell", "run_code"])
@pytest.mark.parametrize("language", Language)
def test_a_fence_tagged_as_a_cell_is_in_the_sessions_language(tag: str, language: Language) -> None:
    """Ours: a model whose prompt mentions cells may use such a tag."""
    assert find_cells(f"```{tag}\nx\n```", language)[1] == (FoundCell(str(language), "x", True),)


@pytest.mark.parametrize(
    "tag",
    ["", "text", "json", "markdown", "console", "yaml", "diff", "html", "css", "sql", "pythonic", "py-3"],
)
def test_other_fences_remain_prose(tag: str) -> None:
    """Ours: data and text in fences are for the reader."""
    text = f"See:\n```{tag}\nx\n```\nand so on"
    assert found(text) == (text, [])


def test_an_info_string_may_have_attributes() -> None:
    """Ours: models add titles and attributes to the tag."""
    assert found('```python title="x" {1,2}\nx\n```') == ("", ["x"])
    assert found("```python:main.py\nx\n```") == ("", ["x"])
    assert found("```python,norun\nx\n```") == ("", ["x"])


def test_a_backtick_in_the_info_string_makes_it_inline_code() -> None:
    """Ours: as in CommonMark, the next line is then prose, not code."""
    text = "```python x = 1``` is a statement\n```json`\nand more"
    assert found(text) == (text, [])
    assert found("~~~python `x`\ny\n~~~") == ("", ["y"])


def test_a_fence_in_the_middle_of_a_line_is_not_a_fence() -> None:
    """Ours: as in CommonMark, a fence starts a line."""
    text = "Use ```python\nlike this\n"
    assert found(text) == (text, [])


# The end of a cell


def test_a_longer_fence_may_contain_shorter_ones() -> None:
    """Ours: code that writes Markdown contains fences."""
    assert found("````python\ns = '''\n```\n'''\n````") == ("", ["s = '''\n```\n'''"])
    assert found("~~~python\n```\n~~~") == ("", ["```"])
    assert found("```python\nx\n`````  \nend") == ("end", ["x"])


def test_a_cell_inside_another_fence_is_part_of_that_fence() -> None:
    """Ours: an example of a cell is not a cell."""
    text = "````markdown\n```python\nx\n```\n````\n"
    assert found(text) == (text, [])
    assert found(text + "```python\ny\n```") == (text.rstrip("\n"), ["y"])
    text = "```\n```python\nx\n```\n"
    assert found(text) == (text, [])


def test_a_fence_with_a_tag_does_not_close_a_cell() -> None:
    """Ours: as in CommonMark, a closing fence has nothing after it."""
    assert found("```python\nx\n```python\ny\n```") == ("", ["x\n```python\ny"])


def test_an_indented_fence_in_the_code_does_not_close_the_cell() -> None:
    """Ours: a docstring with an example must not end the cell."""
    code = 'def f():\n    """\n    ```\n    f()\n    ```\n    """'
    assert found(f"```python\n{code}\n```") == ("", [code])
    assert found("```python\nx\n   ```\nend") == ("end", ["x"])


def test_an_unclosed_cell_is_marked_as_such() -> None:
    """Ours: the caller can distinguish a reply that was cut off from a complete one."""
    assert find_cells("Now:\n```python\nx = 1\ny", Language.PYTHON) == (
        "Now:",
        (FoundCell("python", "x = 1\ny", False),),
    )
    assert find_cells("```python", Language.PYTHON) == ("", (FoundCell("python", "", False),))


def test_several_cells_are_found_in_order() -> None:
    """Ours: the first runs, and the model reads that the others did not."""
    prose, cells = find_cells("a\n```py\n1\n```\n\n\nb\n~~~js\n2\n~~~\n```py\n3\n```\n\nc", Language.PYTHON)
    assert prose == "a\n\nb\n\nc"
    assert [(cell.language, cell.code) for cell in cells] == [
        ("python", "1"),
        ("typescript", "2"),
        ("python", "3"),
    ]


# Lists and quotes


def test_a_cell_in_a_list_is_dedented() -> None:
    """Ours: a cell in the prose of a list is a cell."""
    text = "1. First\n\n   ```python\n   if x:\n       y\n\n   z\n   ```\n2. Then"
    assert found(text) == ("1. First\n\n2. Then", ["if x:\n    y\n\nz"])
    assert found("- ```python\n  x\n  ```\n- next") == ("- next", ["x"])
    assert found("   10) - ```python\n         x\n         ```") == ("", ["x"])


def test_a_tab_indents_to_the_next_tab_stop() -> None:
    """Ours: indentation is counted in columns, as in CommonMark."""
    assert found("\t```python\n\tx\n\t\ty\n    z\n\t```") == ("", ["x\n\ty\nz"])
    assert found("  ```python\n\tx\n  ```") == ("", ["  x"])


def test_code_that_is_not_indented_like_its_fence_keeps_its_indentation() -> None:
    """Bug: dedenting the body of `if x:` by two columns, but not its first line, breaks the program."""
    assert found("- ```python\nif x:\n  y\n```\nend") == ("end", ["if x:\n  y"])


def test_text_at_the_margin_does_not_end_an_indented_cell() -> None:
    """Ours: a string in the code may have lines at the margin."""
    assert found("  ```python\n  s = '''\na\n  '''\n  ```") == ("", ["s = '''\na\n'''"])


def test_a_cell_in_a_quote_loses_the_quote_markers() -> None:
    """Ours: code inside a Markdown quote is a cell, too."""
    assert found("> So:\n>\n> ```python\n> if x:\n>   y\n>\n>z\n> ```\n> Done") == (
        "> So:\n\n> Done",
        ["if x:\n  y\n\nz"],
    )
    assert found("> > - ```python\n> >   x > y\n> >   ```") == ("", ["x > y"])


def test_a_fence_ends_with_its_quote() -> None:
    """Ours: as in CommonMark; half a cell must not count as complete."""
    prose, cells = find_cells("> ```python\n> x\nNo quote.", Language.PYTHON)
    assert (prose, cells) == ("No quote.", (FoundCell("python", "x", False),))
    assert found("> ```json\n> {}\n```python\ny\n```") == ("> ```json\n> {}", ["y"])


# Line endings and unusual text


def test_windows_line_endings_are_understood() -> None:
    """Ours: code gets plain line endings, prose keeps its own."""
    assert found("a\r\nb\r\n\r\n```python\r\nx\r\ny\r\n```\r\nc\r\n") == ("a\r\nb\n\nc\r\n", ["x\ny"])


@pytest.mark.parametrize("text", ["\ud800", "a\udfff\n```python\n\ud800\n```", "\x00```", "\u2028```py\n"])
def test_text_that_is_not_unicode_is_accepted(text: str) -> None:
    """Ours: a provider's stream may split a character in two."""
    find_cells(text, Language.PYTHON)


def test_a_fence_that_is_indented_too_far_is_prose() -> None:
    """Ours: the amount of text held back is limited, so streaming takes linear time."""
    for text in (" " * (MAX_OPENING + 1) + "```python\nx\n", "`" * (MAX_OPENING + 1) + "python\nx\n"):
        assert found(text) == (text, [])
        assert "".join(streamed(list(text))[0]) == text


# Streaming


def test_prose_is_shown_at_once() -> None:
    """Ours: text that cannot begin a fence is shown without delay."""
    finder = CellFinder(Language.PYTHON)
    assert [finder.feed(letter) for letter in "Hi, `x` "] == list("Hi, `x` ")
    assert [finder.feed(piece) for piece in ["\n", "-", " ", "b", "c"]] == ["", "", "", "\n- b", "c"]
    assert [finder.feed(piece) for piece in ["\n", "``", "x", "y"]] == ["", "", "\n``x", "y"]
    assert [finder.feed(piece) for piece in ["\n", "```", "j", "so", "n", "\n", "{"]] == [
        "", "", "", "\n```jso", "n", "", "\n{",
    ]  # fmt: skip


def test_a_cell_is_available_as_soon_as_its_fence_closes() -> None:
    """Ours: the stream can be stopped at the first cell."""
    finder = CellFinder(Language.PYTHON)
    assert [finder.feed(piece) for piece in ["Go.\n``", "`py", "thon\nx", "\n```"]] == ["Go.", "", "", ""]
    assert finder.cells == []
    assert finder.feed("\n") == ""
    assert finder.cells == [FoundCell("python", "x", True)]
    assert (finder.feed("\n\nMore"), finder.end(), finder.end()) == ("\n\nMore", "", "")


def cut_at(text: str, places: list[int]) -> list[str]:
    """Return the text, cut into pieces at these positions."""
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.slow
@settings(max_examples=5 * settings.default.max_examples, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=24).map("".join), st.lists(st.integers(0, 400), max_size=12)
)
@example("```py\r\nx\r\n```\r\n\r\ny", list(range(30)))
@example(">" * 3 + "```py\n>>> x\n" + " " * 300 + ">>> y\n", list(range(400)))
def test_the_pieces_of_a_stream_do_not_matter(text: str, places: list[int]) -> None:
    """Ours: rule 1 of the module."""
    whole, cells = find_cells(text, Language.PYTHON)
    for pieces in (cut_at(text, places), list(text)):
        shown, seen = streamed(pieces)
        assert "".join(shown) == whole
        assert seen == cells


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["words", "1. item", "> quote", "```json\n{}\n```"]), st.booleans()),
        max_size=8,
    )
)
def test_no_part_of_a_cell_is_ever_shown(parts: list[tuple[str, bool]]) -> None:
    """Ours: rule 2 of the module, blank lines around a removed cell become one paragraph break."""
    text = "".join(f"{prose}\n\n" + "```python\nSECRET\n```\n\n" * cell for prose, cell in parts)
    shown, cells = streamed(list(text))
    assert "".join(shown).rstrip() == "\n\n".join(prose for prose, _ in parts)
    assert len(cells) == sum(cell for _, cell in parts)


def fed_in(pieces: list[str]) -> float:
    """Return how many seconds it takes to feed the pieces, the best of several runs."""

    def once() -> float:
        finder = CellFinder(Language.PYTHON)
        begun = time.thread_time()
        for piece in pieces:
            finder.feed(piece)
        finder.end()
        return time.thread_time() - begun

    return min(once() for _ in range(3))


HOSTILE: dict[str, Any] = {
    "blank": " ",
    "backticks": "`",
    "quotes": "> ",
    "returns": "\r",
    "lists": "- ",
    "digits": "1",
    "code": "```python\n" + "x" * 50,
    "info": "```json" + "x" * 50,
}


@pytest.mark.slow
@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_parsing_takes_linear_time(unit: str) -> None:
    """Ours: a model that repeats itself must not cause high costs."""
    letters = list(unit * (20_000 // len(unit)))
    assert fed_in(letters * 4) < 12 * fed_in(letters) + 0.02
    assert fed_in(["".join(letters * 4)]) < 0.1


def test_ten_thousand_pieces_take_almost_no_time() -> None:
    """Ours: streaming must not dominate a turn; the bound is generous for busy machines."""
    text = ("Some words of prose. " * 20 + "\n\n```python\n" + "value = call(1)\n" * 20 + "```\n\n") * 50
    pieces = [text[at : at + 4] for at in range(0, 40_000, 4)]
    assert fed_in(pieces) < 0.1
