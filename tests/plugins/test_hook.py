"""The table of hooks, and the decorator that registers a method as one."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.errors import InvalidPlugin
from standfast.plugins import contexts, hook
from standfast.plugins.hook import HOOKS, LIFECYCLE, SLOTS, HookMark, mark_of, require_kind

TABLE = {
    "prompt_contributor": ("in order", "the turn fails"),
    "context_transform": ("by priority", "the turn fails"),
    "compactor": ("by priority", "the turn fails"),
    "before_turn": ("in order", "the turn fails"),
    "checkpoint": ("in order", "the turn fails"),
    "after_turn": ("in order", "the turn fails"),
    "before_tool_call": ("in order", "that call fails"),
    "after_tool_call": ("in order", "that call fails"),
    "assistant_stream": ("chained", "the model call fails"),
    "assistant_response": ("chained", "the model call fails"),
    "turn_finalized": ("all at once", "never fatal"),
    "turn_persisted": ("all at once", "never fatal"),
    "session_restored": ("all at once", "never fatal"),
    "session_config_changed": ("all at once", "never fatal"),
    "session_config_mutator": ("chained", "never fatal"),
    "tool_catalog": ("in order", "the catalog build fails"),
    "trigger_catalog": ("in order", "the catalog build fails"),
}


def test_the_table_lists_the_order_of_hooks_and_the_effect_of_a_failure() -> None:
    """Seed: the table has both for each hook."""
    assert {name: (kind.order, kind.on_failure) for name, kind in HOOKS.items()} == TABLE


def test_each_key_of_the_table_is_the_name_of_its_hook() -> None:
    """Ours: the key of a hook is its name."""
    assert all(kind.name == name for name, kind in HOOKS.items())
    assert [name for name, kind in HOOKS.items() if kind.order == "all at once"] == list(LIFECYCLE)
    assert [name for name, kind in HOOKS.items() if kind.plain] == ["tool_catalog", "trigger_catalog"]


def test_the_types_that_the_table_names_exist() -> None:
    """Ours: the table is also the documentation, so its names must exist."""
    elsewhere = {"list[Message]", "SessionPolicy"}
    named = {name for kind in HOOKS.values() for name in kind.takes} - elsewhere
    assert all(hasattr(contexts, name) for name in named)


def test_there_are_five_exclusive_slots() -> None:
    """Seed: protocol session, protocol driver, code executor, prose projector, tool-result projector."""
    assert set(SLOTS) == {
        "protocol_session",
        "protocol_driver",
        "code_executor",
        "prose_projector",
        "tool_result_projector",
    }


def test_a_decorated_method_is_the_hook_of_the_same_name() -> None:
    """Ours: `@hook` without arguments is enough."""

    @hook
    async def before_turn(self: Any, ctx: Any) -> None: ...

    assert mark_of(before_turn) == HookMark("before_turn", 0)


def test_the_decorator_may_specify_the_hook_and_its_priority() -> None:
    """Ours: two methods of one plugin can be the same hook."""

    @hook("context_transform", priority=5)
    async def forget(self: Any, ctx: Any, messages: Any) -> Any: ...

    @hook(priority=-1)
    async def compactor(self: Any, ctx: Any) -> Any: ...

    assert mark_of(forget) == HookMark("context_transform", 5)
    assert mark_of(compactor) == HookMark("compactor", -1)


def test_a_function_without_the_decorator_is_not_a_hook() -> None:
    """Ours: the name of a method alone does not make it a hook."""

    async def before_turn(self: Any, ctx: Any) -> None: ...

    assert mark_of(before_turn) is None
    assert mark_of(3) is None


def test_a_misspelt_hook_is_refused_when_it_is_defined_with_a_suggestion() -> None:
    """Seed: names are checked at registration."""
    with pytest.raises(InvalidPlugin, match="hook 'before_trun' does not exist") as caught:

        @hook
        async def before_trun(self: Any, ctx: Any) -> None: ...

    assert caught.value.hint == "did you mean before_turn?"


def test_a_name_without_a_close_match_gets_the_full_list() -> None:
    """Ours: the hint lists the valid names."""
    with pytest.raises(InvalidPlugin) as caught:
        require_kind("zzzzzz")
    assert all(name in str(caught.value.hint) for name in HOOKS)
