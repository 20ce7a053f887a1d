"""The workbench: the web pages of a Standfast server.

Theory of operation
-------------------
A page is made in three steps. A handler (`*_page`) reads records from the store, as the API's handlers do. A
pure function turns the records into a view model: frozen values that describe the page. A renderer turns the
view model into HTML with htpy. In the browser, htmx swaps fragments of pages; event streams (SSE) push such
fragments as events occur.

Rules
-----
1. Text from models, tools, files and people is escaped by htpy. Only `markdown` turns text into elements, and
   only into those on a closed list.
2. The content security policy allows our own scripts and styles and nothing else: no inline script, no
   `style` attribute, no other host.
3. A GET changes nothing. Every change is a POST that requires the scope of its route.
4. A handler looks sessions up through `Call`, so that a tenant's pages show only the tenant's sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__, {"standfast.workbench.pages": "PAGES"})

if TYPE_CHECKING:
    from standfast.workbench.pages import PAGES as PAGES
