"""`standfast plugins`: the installed plugins, and the options, hooks and tools of each."""

from __future__ import annotations

import click

from standfast.cli.options import Invocation, answers, inherited_options
from standfast.cli.output import CommandOutput


@click.group(
    "plugins",
    epilog="""\b
Examples:
  standfast plugins list
  standfast plugins list --hooks             the hooks that a plugin can implement
  standfast plugins show guard
  standfast plugins show my_module:MyPlugin
  standfast new plugin my-plugin             write your own
""",
)
@inherited_options
def command() -> None:
    """List plugins and show what each of them adds.

    An agent uses one by its name: Agent(model, plugins=["plan"]); or with options: plugins=[Guard(...)].
    """


@command.command("list")
@click.option("--hooks", is_flag=True, help="List the hooks that a plugin can implement instead.")
@answers
def list_plugins(_: Invocation, *, hooks: bool) -> CommandOutput:
    """List the plugins of installed packages; a plugin that cannot be loaded is listed with the reason."""
    from standfast.cli.plugin_view import listed, show_hooks, show_list
    from standfast.plugins.discovery import installed_plugins
    from standfast.plugins.hook import HOOKS

    if hooks:
        kinds = list(HOOKS.values())
        return CommandOutput(kinds, lambda: show_hooks(kinds))
    found = [listed(one) for one in installed_plugins()]
    return CommandOutput(found, lambda: show_list(found))


@command.command("show")
@click.argument("name", metavar="NAME|MODULE:CLASS")
@answers
def show(_: Invocation, *, name: str) -> CommandOutput:
    """Show one plugin: its options, hooks, slots, tools and actions.

    NAME is the name of an installed plugin. A class that is not installed is named by its module, which is
    also looked for in the current directory.
    """
    from standfast.cli.plugin_view import load_plugin, show_plugin

    shown = load_plugin(name)
    return CommandOutput(shown, lambda: show_plugin(shown))
