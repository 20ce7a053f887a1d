"""The agent of the tests' server processes: `stream N` streams N chunks, 5 ms apart."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from server_stage import ObedientModel, make_agent

agent = make_agent(ObedientModel(0.005))
