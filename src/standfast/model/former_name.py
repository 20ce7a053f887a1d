"""The project's former name, wherever it is stored.

Rule: only this module and CHANGELOG.md contain the former name.
"""

from __future__ import annotations

from typing import Final

FORMER_DATABASE: Final = "holdfast.db"
FORMER_HOME: Final = ".holdfast"
FORMER_SCHEMA_TABLE: Final = "holdfast_schema"
FORMER_SNAPSHOT_MAGIC: Final = b"HOLDFAST"
FORMER_QUICKJS_MAGIC: Final = b"HFQJ"
