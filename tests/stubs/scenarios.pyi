from tests.runtime.crash_scenarios.scenarios import *  # noqa: F403
from tests.runtime.crash_scenarios.scenarios import _decide as _decide
from tests.runtime.crash_scenarios.scenarios import _open as _open
from tests.runtime.crash_scenarios.scenarios import _settle_queue as _settle_queue
