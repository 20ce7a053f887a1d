"""Makes the helpers of the guide's tests importable for the tests of TypeScript stubs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
