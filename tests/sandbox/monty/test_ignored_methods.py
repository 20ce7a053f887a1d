"""Classes whose special methods the engine would silently ignore."""

from __future__ import annotations

import pytest

from standfast import BlockingSandbox
from standfast.errors import Span


@pytest.fixture(scope="module")
def box() -> BlockingSandbox:
    return BlockingSandbox()


@pytest.mark.parametrize("name", ["__len__", "__bool__", "__setattr__", "__new__", "__get__", "__iadd__"])
def test_a_class_with_ignored_special_methods_is_refused_before_anything_runs(
    box: BlockingSandbox, name: str
) -> None:
    """Bug: such code ran, and its results differed from Python's."""
    with box:
        result = box.run(
            f"x = 1\nclass A:\n    def {name}(self, *args):\n        return 0", session=name[2:-2]
        )
        assert result.error is not None
        assert (result.error.code, result.error.message) == (
            "UNSUPPORTED_FEATURE",
            f"the sandbox's Python does not call {name}",
        )
        assert result.error.span == Span(line=3, column=5, end_line=3, end_column=8)
        assert box.run("x", session=name[2:-2]).status != "ok"


def test_a_check_finds_every_ignored_method(box: BlockingSandbox) -> None:
    """Ours: a check reports every fault, and runs nothing."""
    code = "class A:\n    def __len__(self): return 0\n    def __bool__(self): return False\nlen"
    with box:
        checked = box.validate(code)
        assert [item.span.line for item in checked.diagnostics if item.span] == [2, 3]


def test_a_function_outside_a_class_may_have_such_a_name(box: BlockingSandbox) -> None:
    """Ours: only classes have special methods."""
    with box:
        assert box.run("def __len__(x):\n    return 3\n__len__(1)").result == 3
