"""Which tools a session may use, and what a child session inherits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from standfast.model.capability import SessionToolAccess

_some_names = st.lists(st.sampled_from("abcde"), max_size=5).map(tuple)
_accesses = st.builds(SessionToolAccess, tools=_some_names, hidden_tools=_some_names)


def test_an_empty_list_allows_every_tool() -> None:
    """Seed: an empty `tools` leaves the catalog unchanged."""
    assert SessionToolAccess().select("cab") == ["c", "a", "b"]


def test_named_tools_replace_the_catalog_in_their_order() -> None:
    """Seed: a non-empty `tools` replaces the catalog; unknown names are left out."""
    assert SessionToolAccess(tools=("c", "x", "a", "c")).select("abc") == ["c", "a"]
    assert SessionToolAccess(tools=("x",)).select("abc") == []


def test_hidden_tools_are_removed_afterwards() -> None:
    """Seed: `hidden_tools` then removes by name."""
    assert SessionToolAccess(tools=("a", "b"), hidden_tools=("b", "x")).select("abc") == ["a"]
    assert SessionToolAccess(hidden_tools=("b",)).select("abc") == ["a", "c"]


def test_a_child_with_no_tools_in_common_with_its_parent_gets_none() -> None:
    """Ours: an empty intersection must not mean "all"; nor may a grandchild widen it."""
    parent = SessionToolAccess(tools=("a", "b"))
    closed = SessionToolAccess(tools=("c", "d")).within(parent)
    assert closed.select("abcde") == []
    for grandchild in ((), ("a",), ("c",), ("e",)):
        assert SessionToolAccess(tools=grandchild).within(closed).select("abcde") == []


def test_a_child_without_a_list_has_its_parents_tools() -> None:
    """Seed: a child's authority defaults to its parent's."""
    parent = SessionToolAccess(tools=("b", "a"), hidden_tools=("a",))
    assert SessionToolAccess().within(parent) == parent
    assert parent.within(SessionToolAccess()) == parent


@given(_accesses, _accesses, st.sets(st.sampled_from("abcdef")))
def test_within_allows_what_both_allow(
    child: SessionToolAccess, parent: SessionToolAccess, there: set[str]
) -> None:
    """Ours: the result is never wider than the parent, and no narrower than necessary."""
    names = sorted(there)
    both = set(child.select(names)) & set(parent.select(names))
    assert set(child.within(parent).select(names)) == both
