from tests.runtime.crash_scenarios.code_theatre import *  # noqa: F403
