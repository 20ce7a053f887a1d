from tests.runtime.crash_scenarios.fork_server import *  # noqa: F403
