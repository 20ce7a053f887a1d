"""A plugin in a separate package, installed by pip from a local folder, is found and used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BACKEND = '''
"""Builds a wheel of `src`, with the entry points of pyproject.toml, with nothing but Python."""

import base64
import hashlib
import tomllib
import zipfile
from pathlib import Path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    metadata = f"{name}-{version}.dist-info"
    files = {str(file.relative_to("src")): file.read_bytes() for file in Path("src").rglob("*.*")}
    files[f"{metadata}/METADATA"] = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n".encode()
    files[f"{metadata}/WHEEL"] = b"Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    files[f"{metadata}/entry_points.txt"] = "\\n".join(lines).encode()
    record = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    files[f"{metadata}/RECORD"] = "\\n".join([*record, f"{metadata}/RECORD,,"]).encode()
    wheel = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def _digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
'''

USE = """
from standfast import Agent, ToolMessage
from standfast.providers.scripted import ScriptedModel

model = ScriptedModel([{"tool_calls": [{"name": "greeter_calls"}]}, "done"])
agent = Agent(model, plugins=["greeter"])
result = agent.run_sync("Hello")
print([one.value for one in result.messages if isinstance(one, ToolMessage)], result.output)
"""


def python(*words: str, path: Path | None = None, cwd: Path) -> str:
    """Return the output of this Python, with one more directory on its import path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that `standfast new plugin` writes, with a build backend that needs no network."""
    place = tmp_path_factory.mktemp("project")
    python("-m", "standfast", "new", "plugin", "greeter", cwd=place)
    folder = place / "greeter"
    file = folder / "pyproject.toml"
    in_tree = '[build-system]\nrequires = []\nbuild-backend = "in_tree"\nbackend-path = ["."]\n\n[project]'
    text, count = re.subn(r"\[build-system\].*?\[project\]", in_tree, file.read_text(), flags=re.DOTALL)
    assert count == 1
    file.write_text(text)
    (folder / "in_tree.py").write_text(BACKEND)
    return folder


@pytest.fixture(scope="module")
def site(project: Path) -> Path:
    """Return the directory into which pip has installed the folder."""
    target = project.parent / "site"
    options = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation")
    python("-m", "pip", "install", *options, "--target", str(target), str(project), cwd=project.parent)
    return target


def listed(path: Path | None, cwd: Path) -> dict[str, Any]:
    document = json.loads(python("-m", "standfast", "plugins", "list", "--json", path=path, cwd=cwd))
    return {one["name"]: one for one in document}


@pytest.mark.slow
def test_an_installed_package_offers_its_plugin(site: Path, tmp_path: Path) -> None:
    """Ours: a third-party package with an entry point is found after `pip install` of a local folder."""
    assert "greeter" not in listed(None, tmp_path)
    found = listed(site, tmp_path)["greeter"]
    assert (found["package"], found["version"], found["error"]) == ("standfast_greeter", "0.1.0", None)
    assert found["target"] == "standfast_greeter:Greeter"
    assert "greeter_calls() -> int" in python(
        "-m", "standfast", "plugins", "show", "greeter", path=site, cwd=tmp_path
    )


@pytest.mark.slow
def test_an_agent_can_use_an_installed_plugin_by_name(site: Path, tmp_path: Path) -> None:
    """Ours: installing the package and naming the plugin is enough."""
    assert python("-c", USE, path=site, cwd=tmp_path) == "[0] done\n"
