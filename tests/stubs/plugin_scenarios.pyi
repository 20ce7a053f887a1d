from tests.runtime.crash_scenarios.plugin_scenarios import *  # noqa: F403
