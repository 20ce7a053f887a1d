from tests.runtime.crash_scenarios.theatre import *  # noqa: F403
from tests.runtime.crash_scenarios.theatre import _lines as _lines
