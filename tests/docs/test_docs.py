"""Execute every command and snippet of the README and of `docs`, and compare their tables with the code."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import get_args

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from docblocks import PAGES, ROOT, Block, Command, Shell, blocks, commands, run_script, script, steps

from standfast import CodeProtocol, events
from standfast.cli.main import main
from standfast.errors import STATUS_OF_CODE, Code
from standfast.model.code import EngineName
from standfast.model.limits import AGENT_TIMEOUT_MS, SANDBOX_TIMEOUT_MS, CapabilityLimits, SessionLimits
from standfast.plugins import shipped
from standfast.plugins.answers import ALLOWED
from standfast.plugins.hook import HOOKS, SLOTS
from standfast.protocols.code.executor import CELL_LIMITS
from standfast.protocols.code.own_functions import own_functions
from standfast.protocols.code.plugin import how_to_act
from standfast.testing.postgres_server import PostgresServer
from standfast.tools import ToolRegistry
from standfast.tools.registry import ToolCatalog

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_NOT_RUN = ("pip install ", "python3 -m venv ", ". .venv/")
"""Commands that set up an environment; `make setup` has done the same."""


def _named(page: Path) -> str:
    return str(page.relative_to(ROOT)).removeprefix("docs/")


def _table(page: str, first: str, *, heading: bool = False) -> list[list[str]]:
    """Return the cells of the first table of a page whose first column has this name, without backticks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").replace("`", "")
    found = re.search(rf"^\| {first} \|.*?(?=\n\n|\n*\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no table of {first}s"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].split("\n")]
    return [rows[0], *rows[2:]] if heading else rows[2:]


def _database_url(page: Path, request: pytest.FixtureRequest) -> str:
    """Return the URL of a real server for a page that uses one."""
    if "DATABASE_URL" not in page.read_text(encoding="utf-8"):
        return ""
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_the_python_code_of_a_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Ours: a snippet works as shown, including its assertions."""
    run_script(page, tmp_path, _database_url(page, request))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_the_transcripts_of_a_page_are_accurate(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Ours: a command exits and prints as the page says, in a directory with the page's files."""
    shell = Shell(tmp_path, _database_url(page, request))
    for step in steps(page):
        if isinstance(step, Block):
            step.write_to(tmp_path)
            continue
        command = _replace_make(step) if step.text.startswith("make ") else step
        if command.text and not command.text.startswith(_NOT_RUN):
            shell.check(command)


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_every_block_of_a_page_is_of_a_kind_that_is_tested(page: Path) -> None:
    """Ours: nothing that looks like code escapes the tests above."""
    kinds = {(block.language, block.info.partition("=")[0]) for block in blocks(page)}
    assert kinds <= {
        ("python", ""), ("python", "title"), ("console", ""), ("text", ""), ("json", ""), ("yaml", ""),
    }  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_the_links_of_a_page_are_valid(page: Path) -> None:
    """Ours: a relative link names a file that exists, and a heading in it."""
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in _anchors(linked), target


def test_the_index_links_to_every_page() -> None:
    """Ours: a reader finds every page from the first one, and in the navigation of the site."""
    linked = set(_LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    pages = {_named(page) for page in PAGES[1:]} - {"index.md"}
    assert pages <= linked
    assert pages <= set(re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_no_page_is_too_long(page: Path) -> None:
    """Ours: the README has at most 150 lines, a page at most 400."""
    lines = page.read_text(encoding="utf-8").count("\n")
    assert lines <= (150 if page.name == "README.md" else 400)


def test_the_table_of_error_codes_is_up_to_date() -> None:
    """Ours: codes are stable, so each has its row; `scripts/error_codes.py` writes the page."""
    script = runpy.run_path(str(ROOT / "scripts" / "error_codes.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"]()
    assert set(STATUS_OF_CODE) == set(Code)


@pytest.mark.parametrize("limits", [SessionLimits(), CapabilityLimits()], ids=["session", "capability"])
def test_every_limit_is_in_the_table_with_its_default(limits: SessionLimits | CapabilityLimits) -> None:
    """Ours: the table of limits documents the defaults."""
    text = (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text, re.MULTILINE))
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        default = "none" if value is None else f"{value:,}"
        if name == "timeout_ms":
            default = f"{SANDBOX_TIMEOUT_MS:,}; for an agent {AGENT_TIMEOUT_MS:,}"
        assert shown[name] == default


def test_every_hook_is_in_the_table_with_its_parameters_order_and_failure_rule() -> None:
    """Ours: every hook is documented as the kernel defines it."""
    rows = {name: cells for name, *cells in _table("reference/hooks.md", "hook")}
    assert list(rows) == list(HOOKS)
    for name, (when, told, answers, order, on_failure) in rows.items():
        kind = HOOKS[name]
        assert when
        assert told == ", ".join(kind.takes)
        assert (answers, order, on_failure) == (kind.answers, kind.order, kind.on_failure)


def test_every_directive_is_in_the_table_with_the_stages_that_allow_it() -> None:
    """Ours: the table lists what the kernel accepts at each stage."""
    heading, *rows = _table("reference/hooks.md", "directive", heading=True)
    stages = heading[1:-1]
    assert set(stages) == set(ALLOWED)
    shown = {
        (row[0], stage)
        for row in rows
        for stage, cell in zip(stages, row[1:-1], strict=True)
        if cell == "yes"
    }
    assert shown == {(kind.__name__, stage) for stage, kinds in ALLOWED.items() for kind in kinds}


def test_every_slot_and_every_shipped_plugin_is_documented() -> None:
    """Ours: nothing that a user can fill or use is left out."""
    assert {name for name, *_ in _table("reference/hooks.md", "slot")} == set(SLOTS)
    listed = {
        re.sub(r"\[(\w+)\].*", r"\1", name) for name, *_ in _table("guides/shipped-plugins.md", "plugin")
    }
    assert listed == set(shipped.__all__)


def test_the_prompt_for_acting_in_code_is_on_the_code_page() -> None:
    """Ours: the documented prompt is the one that is sent."""
    pages = [ROOT / "docs" / "guides" / name for name in ("code.md", "code-in-typescript.md")]
    shown = [block.text.strip() for page in pages for block in blocks(page) if block.language == "text"]
    assert how_to_act(fences=True) in shown
    assert how_to_act(fences=True, engine=EngineName.QUICKJS) in shown


def test_every_option_and_limit_of_cells_is_documented() -> None:
    """Ours: the tables have the names and the defaults."""
    given = inspect.signature(CodeProtocol.__init__).parameters
    options = {name: shown for name, shown, _ in _table("guides/code-limits.md", "option")}
    assert set(options) == set(given) - {"self"}
    for name in ("cells", "check", "observation_chars", "guide_chars"):
        default = given[name].default
        assert options[name] == (f"{default:,}" if isinstance(default, int) else f'"{default}"')
    limits = {name: shown for name, shown, _ in _table("guides/code-limits.md", "limit")}
    assert limits == {name: f"{getattr(CELL_LIMITS, name):,}" for name in CELL_LIMITS.__struct_fields__}


def test_every_built_in_function_of_cells_is_documented() -> None:
    """Ours: the table has exactly what code may call besides tools."""
    shown = " ".join(name for name, *_ in _table("guides/code.md", "name"))
    found = set(re.findall(r"(\w+)\(", shown))
    assert found == set(own_functions(ToolCatalog(), ToolRegistry().require)) - {"run_code"}


def test_the_generated_tables_of_the_reference_are_current() -> None:
    """Ours: tables of exceptions, events, schemas, settings and options match the code."""
    writer = runpy.run_path(str(ROOT / "scripts" / "write-reference"))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text == writer["current"](text), f"{_named(page)}: run scripts/write-reference"


def _public_modules() -> list[str]:
    """Return the modules that programs may import from. The table in the API reference is the only list."""
    return [name for name, *_ in _table("reference/api/modules.md", "module")]


def _imports(source: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import from Standfast."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((one.name, "") for one in node.names if one.name.startswith("standfast"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("standfast"):
            yield from ((node.module or "", one.name) for one in node.names)


_SHOWN_PYTHON = [
    *(pytest.param(script(page), id=_named(page)) for page in PAGES),
    *(
        pytest.param(block.text, id=f"{_named(page)}:{block.file}")
        for page in PAGES
        for block in blocks(page)
        if block.file is not None and block.file.endswith(".py")
    ),
    *(pytest.param(path.read_text(), id=path.name) for path in sorted((ROOT / "examples").rglob("*.py"))),
]


@pytest.mark.parametrize("source", _SHOWN_PYTHON)
def test_documented_python_imports_only_public_names(source: str) -> None:
    """Ours: documented code keeps working, so it imports from documented modules only."""
    public = _public_modules()
    for module, name in _imports(source):
        assert module in public, f"{module} is not in docs/reference/api/modules.md"
        found = import_module(module)
        assert not name or f"{module}.{name}" in public or name in _names(found), f"{module}.{name}"


@pytest.mark.parametrize("module", _public_modules())
def test_every_public_name_is_in_the_api_reference(module: str) -> None:
    """Ours: whatever can be imported from a public module is documented, by itself or with its module."""
    pages = (ROOT / "docs" / "reference" / "api").glob("*.md")
    paths = [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)]
    assert len(paths) == len(set(paths))
    shown = [resolve_name(path) for path in paths]
    whole = [one for one in shown if isinstance(one, ModuleType)]
    public = import_module(module)
    if public in whole:
        return
    for name in _names(public):
        value = getattr(public, name)
        assert any(value is one for one in shown) or any(value is vars(one).get(name) for one in whole), name


def _names(module: ModuleType) -> list[str]:
    """Return the names that a module exports, without submodules, and without HOOKS, which has a page."""
    if (exported := getattr(module, "__all__", None)) is not None:
        return [name for name in exported if name not in ("__version__", "HOOKS")]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    ]


def test_every_event_can_be_imported_from_events() -> None:
    """Ours: a program that observes a session imports everything from one place."""
    assert {kind.__name__ for kind in get_args(events.Event)} == set(_names(events)) - {"Event"}


def test_every_environment_variable_is_in_the_settings() -> None:
    """Ours: a variable that the code reads is documented."""
    sources = (ROOT / "src").rglob("*.py")
    used = set().union(*(re.findall(r"STANDFAST_[A-Z_]+", page.read_text()) for page in sources))
    internal = {"STANDFAST_CRASH_AT", "STANDFAST_TOUR_CRASH", "STANDFAST_TOUR_LEDGER"}
    shown = {name for name, _ in _table("reference/settings.md", "variable")}
    assert shown == used - internal


def test_every_command_is_on_a_command_line_page() -> None:
    """Ours: every command is shown with an example that is executed."""
    pages = (ROOT / "docs" / "reference").glob("command-line*.md")
    shown = [command.text for page in pages for command in commands(page)]
    for words in _all_commands():
        assert any(f"standfast {words}" in text for text in shown), words


def test_make_has_the_targets_that_the_readme_names() -> None:
    """Ours: `make run` and `make test` do their own set-up, and CI runs what a developer runs."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert {"setup", "run", "test", "test-all", "test-fast", "lint", "bench", "help"} <= targets
    named = [re.findall(r"\bmake ([a-z-]+)", block.text) for block in blocks(ROOT / "README.md")]
    assert set().union(*named) <= targets
    ci = ROOT / ".ci" / "run"
    assert ci.stat().st_mode & 0o111
    assert [line for line in ci.read_text(encoding="utf-8").split("\n") if line.startswith("make")] == [
        "make test"
    ]


def _replace_make(command: Command) -> Command:
    """Return the command for a `make` target: `make run` is the tour; others would run this very test."""
    text = "standfast tour" if command.text == "make run" else ""
    return Command(text, command.output, command.line)


def _anchors(page: Path) -> set[str]:
    headings = _HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def _all_commands() -> list[str]:
    import click

    context = click.Context(main)
    found: list[str] = []
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        if isinstance(command, click.Group):
            found += [f"{name} {below}" for below in command.commands]
        else:
            found.append(name)
    return found
