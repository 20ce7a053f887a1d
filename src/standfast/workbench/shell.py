"""The layout of every page: head, navigation, keyboard help, messages; and the error page."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import htpy as h
import msgspec
from starlette.responses import Response

from standfast import __version__
from standfast.errors import Code, RequestRefused, StandfastError
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.problems import INVALID_CREDENTIAL, NO_CREDENTIAL
from standfast.workbench.inbox import count_pending
from standfast.workbench.parts import icon, with_code

if TYPE_CHECKING:
    from collections.abc import Mapping

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HTML: Final = "text/html; charset=utf-8"
_TYPES: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_JOINED: Final = {"scripts.js": ("htmx-4.min.js", "hx-sse-4.min.js", "workbench.js")}
"""Files that are served as one. htmx scans the page as soon as its script has run, so an extension loaded
later would miss the streams.
"""
_HTMX: Final = {
    "includeIndicatorCSS": False,
    "prefix": "",
    "morphIgnore": ["data-htmx-powered", "open"],
}
ROUTES: Final = Routes()


class NavigationEntry(NamedTuple):
    """An entry of the navigation."""

    name: str
    path: str
    title: str
    key: str


PLACES: Final = (
    NavigationEntry("sessions", "/", "Sessions", "s"),
    NavigationEntry("approvals", "/approvals", "Approvals", "a"),
    NavigationEntry("tools", "/tools", "Tools", "t"),
    NavigationEntry("usage", "/usage", "Usage", "u"),
    NavigationEntry("operations", "/operations", "Operations", "o"),
)
_KEYS: Final = (
    ("?", "Show this list"),
    ("/", "Search or filter"),
    ("j  k", "Next or previous line"),
    ("Enter", "Open or close the line"),
    ("n  p", "Next or previous page, input or call"),
    ("v", "Next view of this session or turn"),
    ("c", "Write a message"),
    ("Ctrl+Enter", "Send the message or form"),
    ("a  d", "Go to Approve or Deny"),
    ("Esc", "Leave a field or close a dialog"),
    *((f"g {place.key}", f"Go to {place.title}") for place in PLACES),
)


async def page(
    call: Call, *, title: str, place: str, main: h.Node, stream: str = "", status: int = 200
) -> Response:
    """Return a whole page. *stream* is the URL of the stream that updates it."""
    pending = await count_pending(call)
    body = h.body(
        {"hx-headers:inherited": '{"Standfast-Request": "1"}'},
        data_place=place,
    )[
        h.a(".skip", href="#main")["Skip to content"],
        _navigation(call, place, pending),
        h.main("#main", tabindex="-1")[main],
        h.div("#live", {"hx-sse:connect": stream}, hx_swap="none") if stream else None,
        h.div("#toasts", role="status", aria_live="polite"),
        h.div("#offline", role="status")["Connection lost. Reconnecting…"],
        _keys(),
    ]
    counted = f"({pending}) {title}" if pending and place == "approvals" else title
    return respond(_document(counted, body, hears_hidden=place == "approvals"), status)


def respond(content: h.Node, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return HTML with the content security policy."""
    text = content if isinstance(content, str) else str(h.fragment[content])
    return Response(text, status, {"content-security-policy": CSP, **(headers or {})}, HTML)


def redirect(path: str) -> Response:
    """Redirect the browser to another page after an action."""
    return Response(None, 204, {"hx-redirect": path})


def problem_page(error: StandfastError, status: int) -> Response:
    """Return an error as a page; after an action, htmx shows it as a message."""
    title = _TITLES.get(status, "That did not work")
    message, hint = _sentence(error.message), error.hint or ""
    if status == 413:
        hint = "attach large texts as files"
    elif status == 401 or "/v1/" in hint:
        hint = ""  # it is for programs
    if error.message in (NO_CREDENTIAL, INVALID_CREDENTIAL):
        message = "You are not signed in, or your sign-in has expired."
    body = h.body(".bare")[
        h.main("#main")[
            h.section("#problem.problem", role="alert")[
                h.a(".brand", href="/")[icon("brand"), h.span["Standfast"]],
                h.button(".quiet.dismiss", type="button", data_dismiss=True, aria_label="Close")["✕"],
                h.h1[title],
                h.p(dir="auto")[message],
                hint and h.p(".muted")[with_code(_sentence(hint))],
                status == 401
                and h.p[
                    "Run ",
                    h.code["standfast tokens link"],
                    " and open the link that it prints within a minute, or ",
                    h.a(href="/signin")["enter its code"],
                    ".",
                ],
                h.p(".row.apart.small")[
                    h.code(".muted")[str(error.code)], status != 401 and h.a(href="/")["All sessions"]
                ],
            ]
        ]
    ]
    headers = {"hx-retarget": "#toasts", "hx-reswap": "innerHTML", "hx-reselect": "#problem"}
    if isinstance(error, RequestRefused):
        headers.update(error.headers or {})
    return respond(_document(title, body), status, headers)


_TITLES: Final = {
    401: "Sign in",
    403: "Not allowed",
    404: "Not found",
    409: "Conflict",
    413: "Too large",
    429: "Too many requests",
    503: "Not available right now",
}


def _sentence(text: str) -> str:
    """Capitalise a message, unless it begins with a name, and end it with a full stop."""
    word = text.partition(" ")[0]
    shown = text[:1].upper() + text[1:] if word.isalpha() and word.islower() else text
    return shown if shown.endswith((".", "?", "!", ":", "…")) else f"{shown}."


def _document(title: str, body: h.Element, *, hears_hidden: bool = False) -> str:
    """Return a page. Its stream stays open while the page is hidden only if *hears_hidden*.

    A browser opens at most six connections to a server, so six hidden pages would block the next one. The
    inbox is the exception: its title shows a count, which is all that a background tab displays.
    """
    streams = {"reconnectMaxDelay": 5000, "pauseOnBackground": not hears_hidden}
    return str(
        h.html(lang="en")[
            h.head[
                h.meta(charset="utf-8"),
                h.title[f"{title} · Standfast"],
                h.meta(name="viewport", content="width=device-width, initial-scale=1"),
                h.meta(name="color-scheme", content="light dark"),
                h.meta(name="htmx-config", content=json.dumps({**_HTMX, "sse": streams})),
                h.link(rel="icon", href=static_url("icon.svg"), type="image/svg+xml"),
                h.link(rel="stylesheet", href=static_url("style.css")),
                h.script(src=static_url("scripts.js"), defer=True),
            ],
            body,
        ]
    )


def _navigation(call: Call, current: str, pending: int) -> h.Node:
    who = call.credential
    return h.header(".side")[
        h.a(".brand", href="/")[icon("brand"), h.span["Standfast"]],
        h.nav(aria_label="Views")[
            [
                h.a(
                    href=place.path,
                    aria_current="page" if place.name == current else None,
                    data_key=place.key,
                )[
                    icon(place.name),
                    h.span[place.title],
                    pending_badge(pending) if place.name == "approvals" else None,
                ]
                for place in PLACES
            ]
        ],
        h.div(".who")[
            h.p(title=f"{who.id}: {', '.join(sorted(who.scopes))}")[
                h.strong(dir="auto")[who.name or who.id],
                who.tenant and h.span(".muted")[f" of {who.tenant}"],
            ],
            h.p(".row")[
                h.button(".quiet", type="button", data_open="keys")["Keys"],
                h.button(".quiet", type="button", hx_post="/leave", hx_swap="none")["Sign out"],
            ],
            h.p(".muted.small")[f"Standfast {__version__}"],
        ],
    ]


def pending_badge(pending: int) -> h.Element:
    return h.span("#pending.count", hidden=not pending)[
        f"{pending:,}", h.span(".hide")[" waiting for a decision"]
    ]


def _keys() -> h.Node:
    return h.dialog("#keys", aria_labelledby="keys-title")[
        h.h2("#keys-title")["Keys"],
        h.dl(".keys")[
            [h.div[h.dt[[h.kbd[key] for key in keys.split("  ")]], h.dd[does]] for keys, does in _KEYS]
        ],
        h.form(method="dialog")[h.button["Close"]],
    ]


# Files


class StaticQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The digest of the file, which lets browsers cache it indefinitely."""

    v: Annotated[str, msgspec.Meta(max_length=64)] | None = None


@lru_cache(maxsize=16)
def _static(name: str) -> tuple[bytes, str] | None:
    """Return a static file and its digest, None if no file has this name."""
    folder = resources.files("standfast.workbench").joinpath("static")
    files = [folder.joinpath(part) for part in _JOINED.get(name, (name,))]
    if not all(file.is_file() for file in files):
        return None
    data = b"\n;\n".join(file.read_bytes() for file in files)
    return data, hashlib.sha256(data).hexdigest()[:16]


def static_url(name: str) -> str:
    found = _static(name)
    if found is None:
        raise FileNotFoundError(
            f"static/{name} is missing: install Standfast again, its build hook writes it"
        )
    return f"/static/{name}?v={found[1]}"


def static_text(name: str) -> str:
    """Return a static file as text, "" if no file has this name."""
    found = _static(name)
    return "" if found is None else found[0].decode()


@ROUTES.add("GET", "/static/{name}", Scope.PUBLIC, query=StaticQuery)
async def static_file(call: Call) -> Response:
    """Send a style sheet, a script or an icon."""
    name = call.path["name"]
    found = _static(name)
    if found is None:
        raise RequestRefused(404, Code.METHOD_NOT_FOUND, f"there is no file {name[:80]!r}")
    kind = _TYPES.get(name.rpartition(".")[2], "image/svg+xml" if name.endswith(".svg") else "text/plain")
    return Response(found[0], 200, {"cache-control": "public, max-age=31536000, immutable"}, kind)


@ROUTES.add("POST", "/leave", Scope.READ)
async def leave(call: Call) -> Response:
    """Sign out."""
    from standfast.server.signin import sign_out

    left = await sign_out(call)
    left.headers["hx-redirect"] = "/signin"
    return left
