from tests.runtime.monitors.monitor_stage import *  # noqa: F403
