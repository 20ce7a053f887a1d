from tests.runtime.crash_scenarios.code_tools import *  # noqa: F403
