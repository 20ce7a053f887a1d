from tests.runtime.crash_scenarios.plugin_theatre import *  # noqa: F403
