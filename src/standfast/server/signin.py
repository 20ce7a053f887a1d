"""Browser sign-in: a link with a single-use code, a page with one button, a cookie.

Rules
-----
1. Opening the link changes nothing, so a mail scanner or link preview does not use up the code.
2. The cookie is HttpOnly and SameSite=Lax, and Secure over https. It holds its own token, valid for twelve
   hours.
3. The page runs no script and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
from typing import Final
from urllib.parse import parse_qs

from starlette.responses import Response

from standfast.runtime.http_values import SignInQuery
from standfast.server.calls import Call, Routes
from standfast.server.credentials import BROWSER_S, Scope
from standfast.server.problems import unauthenticated

COOKIE: Final = "standfast"
_STYLE: Final = (
    ":root{color-scheme:light dark}*{box-sizing:border-box}"
    "body{font:15px/1.5 ui-sans-serif,system-ui,sans-serif;margin:0;padding:0 1rem;"
    "background:light-dark(#f7f7f4,#131615);color:light-dark(#1c211f,#e6eae7)}"
    "main{display:grid;gap:.9rem;max-width:32rem;margin:calc(12vh + .9rem) auto 0;"
    "padding:1.5rem 1.6rem;border-radius:10px;"
    "border:1px solid light-dark(#e0e2dc,#2e3532);background:light-dark(#fff,#1a1e1d)}"
    "h1,p,form{margin:0}h1{font-size:1.3rem;line-height:1.25;letter-spacing:-.01em}"
    ".brand{display:flex;gap:.5rem;align-items:center;font-weight:700;color:light-dark(#17605b,#6fc7bd)}"
    "svg{width:1.15em;height:1.15em;fill:none;stroke:currentColor;stroke-width:1.8;stroke-linecap:round;"
    "stroke-linejoin:round}"
    "form,label{display:grid;gap:.6rem}label{gap:.2rem}label,.note{color:light-dark(#545d59,#a9b3ae)}"
    "input,button{font:inherit;font-size:16px;min-height:2.6rem;padding:.3rem .7rem;border-radius:7px;"
    "border:1px solid light-dark(#c5c9c0,#46504c);width:100%;color:light-dark(#1c211f,#e6eae7);"
    "background:light-dark(#fff,#1a1e1d)}"
    "button{background:light-dark(#17605b,#6fc7bd);border-color:light-dark(#17605b,#6fc7bd);"
    "color:light-dark(#fff,#0d1a18);font-weight:600;cursor:pointer}"
    ":focus-visible{outline:2px solid light-dark(#17605b,#6fc7bd);outline-offset:2px}"
)
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_CSP: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sign in to Standfast</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>
<body><main><p class="brand">
<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M4 17h16M6 17V9a6 6 0 0 1 12 0v8M10 17v-5h4v5"/></svg>
Standfast</p><h1>Sign in</h1><form method="post" action="signin">
<label>Code <input name="code" value="{code}" autocomplete="off" required></label>
<button type="submit">Sign in</button></form>
<p class="note">A code works once and expires after a minute. <code>standfast tokens link</code> prints a new
one.</p></main></body>
</html>
"""
ROUTES: Final = Routes()


@ROUTES.add("GET", "/signin", Scope.PUBLIC, query=SignInQuery, answer=str)
async def sign_in_page(call: Call) -> Response:
    """Show the page on which a browser signs in."""
    asked: SignInQuery = call.query
    page = _PAGE.format(style=_STYLE, code=html.escape(asked.code or "", quote=True))
    # With no-referrer, browsers submit the form with `Origin: null`, which the gate rejects.
    headers = {"content-security-policy": _CSP, "referrer-policy": "same-origin"}
    return Response(page, 200, headers, "text/html; charset=utf-8")


@ROUTES.add("POST", "/signin", Scope.PUBLIC, body=bytes, form="application/x-www-form-urlencoded", status=303)
async def sign_in(call: Call) -> Response:
    """Exchange a code for a cookie."""
    try:
        given = parse_qs(call.body.decode("utf-8", "replace"), max_num_fields=10).get("code", [""])[0]
    except ValueError:
        given = ""
    redeemed = await call.server.tokens.redeem(given.strip())
    if redeemed is None:
        raise unauthenticated("the sign-in code is wrong, was used, or has expired")
    token, record = redeemed
    call.server.audit.record("sign_in", credential=record.id, tenant=record.tenant, subject=record.name)
    secure = "; Secure" if call.scope.get("scheme") == "https" else ""
    cookie = f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Lax; Max-Age={BROWSER_S}{secure}"
    root = str(call.scope.get("root_path", "")) or ""
    return Response(None, 303, {"set-cookie": cookie, "location": f"{root}/"})


@ROUTES.add("POST", "/signout", Scope.READ, status=204)
async def sign_out(call: Call) -> Response:
    """Revoke the credential of this request, and delete the cookie."""
    await call.server.tokens.revoke(call.credential.id)
    call.audit("sign_out")
    return Response(None, 204, {"set-cookie": f"{COOKIE}=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0"})
