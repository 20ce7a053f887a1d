from tests.runtime.host.host_stage import *  # noqa: F403
