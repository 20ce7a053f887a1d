from tests.runtime.crash_scenarios.broken_disk import *  # noqa: F403
