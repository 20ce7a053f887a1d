"""The build hook: takes third-party JavaScript for the workbench from a registry package.

`django-htmx` is a build requirement, pinned in pyproject.toml. Of it, wheels and editable installs get two files of
htmx, whose digests are checked here, and a file with their licence. None of them is committed.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "django-htmx"
SOURCE = "django_htmx/static/django_htmx"
TARGET = "src/standfast/workbench/static"
FILES = {
    "htmx-4.min.js": ("htmx-4.min.js", "28fae7bbe8e8142b702debb9d5234a9a436d9435a4b5165b195aa1a7ed840d25"),
    "ext/hx-sse-4.min.js": (
        "hx-sse-4.min.js",
        "d3aeb71073552b253eaee99badebd60607003b1c25ac567ab88187d6887ab522",
    ),
}
LICENCES = """\
The files htmx-4.min.js and hx-sse-4.min.js in this directory are htmx and its extension for server-sent events,
taken as they are from the package {package}.

htmx (https://htmx.org), Zero-Clause BSD

Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING ALL
IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN
ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.

{package}, MIT License

{mit}"""


class ThirdPartyScripts(BuildHookInterface[Any]):
    """Writes the scripts and their licences into the package."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel":
            write_scripts(Path(self.root) / TARGET)
            build_data["artifacts"].append(f"{TARGET}/*")


def write_scripts(target: Path) -> None:
    """Copy each file into *target* if its digest is the known one; raise if the package or a digest is another."""
    try:
        package, listed = f"{PACKAGE} {version(PACKAGE)}", files(PACKAGE) or []
    except PackageNotFoundError:
        raise RuntimeError(f"{PACKAGE} is not installed; build with isolation, or install it first") from None
    found = {str(path): Path(str(path.locate())) for path in listed}
    target.mkdir(parents=True, exist_ok=True)
    for name, (own_name, digest) in FILES.items():
        data = found[f"{SOURCE}/{name}"].read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise RuntimeError(f"{name} of {package} has another digest than {digest}")
        (target / own_name).write_bytes(data)
    mit = next(path for name, path in found.items() if name.endswith("licenses/LICENSE")).read_text()
    (target / "LICENSES.txt").write_text(LICENCES.format(package=package, mit=mit))
