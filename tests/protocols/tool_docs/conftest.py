"""Lets the tests of TypeScript stubs share what those of the guide have."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
