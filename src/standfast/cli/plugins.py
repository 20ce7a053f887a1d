"""`standfast plugins`: which plugins are installed, and what each of them brings."""

from __future__ import annotations

import click

from standfast.cli.options import Invocation, answers, inherited_options
from standfast.cli.output import Answer


@click.group(
    "plugins",
    epilog="""\b
Examples:
  standfast plugins list
  standfast plugins list --hooks             what a plugin can have a say in
  standfast plugins show guard
  standfast plugins show my_module:MyPlugin
  standfast new plugin my-plugin             write your own
""",
)
@inherited_options
def command() -> None:
    """List plugins, and show what each of them brings.

    An agent uses one by its name: Agent(model, plugins=["plan"]); or with options: plugins=[Guard(...)].
    """


@command.command("list")
@click.option("--hooks", is_flag=True, help="List the hooks that a plugin can have instead.")
@answers
def list_plugins(_: Invocation, *, hooks: bool) -> Answer:
    """List the plugins that installed packages offer.

    One that cannot be loaded is listed with the reason.
    """
    from standfast.cli.plugin_view import listed, show_hooks, show_list
    from standfast.plugins.discovery import installed_plugins
    from standfast.plugins.hook import HOOKS

    if hooks:
        kinds = list(HOOKS.values())
        return Answer(kinds, lambda: show_hooks(kinds))
    found = [listed(one) for one in installed_plugins()]
    return Answer(found, lambda: show_list(found))


@command.command("show")
@click.argument("name", metavar="NAME|MODULE:CLASS")
@answers
def show(_: Invocation, *, name: str) -> Answer:
    """Show one plugin: its options, hooks, slots, tools and actions.

    NAME is that of an installed plugin. A class that is not installed is named by its module, which is
    looked for in the current directory too.
    """
    from standfast.cli.plugin_view import look, show_plugin

    shown = look(name)
    return Answer(shown, lambda: show_plugin(shown))
