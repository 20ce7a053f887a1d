"""All routes of the workbench, for `create_app(pages=...)`."""

from __future__ import annotations

from typing import Final

from standfast.server.calls import BrowserPages
from standfast.workbench import (
    approvals_page,
    branches_page,
    call_page,
    files,
    grants_page,
    live_pages,
    operations_page,
    prompt_page,
    session_page,
    sessions_page,
    shell,
    tools_page,
    turn_pages,
    usage_page,
)

PAGES: Final = BrowserPages(
    routes=(
        *sessions_page.ROUTES,
        *session_page.ROUTES,
        *approvals_page.ROUTES,
        *branches_page.ROUTES,
        *grants_page.ROUTES,
        *tools_page.ROUTES,
        *usage_page.ROUTES,
        *operations_page.ROUTES,
        *turn_pages.ROUTES,
        *prompt_page.ROUTES,
        *call_page.ROUTES,
        *live_pages.ROUTES,
        *files.ROUTES,
        *shell.ROUTES,
    ),
    problem=shell.problem_page,
)
"""The pages of the workbench, for `create_app(pages=PAGES)`."""
