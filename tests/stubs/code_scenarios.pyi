from tests.runtime.crash_scenarios.code_scenarios import *  # noqa: F403
