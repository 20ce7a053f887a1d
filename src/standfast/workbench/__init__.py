"""The workbench: what a Standfast server shows people in a browser.

Theory of operation
-------------------
A page is made in three steps. A handler (`*_page`) reads records from the store, as the handlers of the API
do. A pure function turns them into a view model: frozen values that say what is shown. A renderer turns those
into HTML with htpy. htmx swaps fragments of pages in the browser; streams (SSE) send such fragments as things
happen.

Rules
-----
1. Text from models, tools, files and people is text: htpy escapes it. `markdown` alone makes elements of
   text, out of a closed list of them.
2. The content security policy allows our own scripts and styles and nothing else: no inline script, no
   `style` attribute, no other host.
3. A page changes nothing. What changes something is a POST, with the scope of its route.
4. A handler finds sessions with `Call`, so that a tenant's pages show the tenant's sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__, {"standfast.workbench.pages": "PAGES"})

if TYPE_CHECKING:
    from standfast.workbench.pages import PAGES as PAGES
