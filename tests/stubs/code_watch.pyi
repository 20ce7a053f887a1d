from tests.runtime.crash_scenarios.code_watch import *  # noqa: F403
