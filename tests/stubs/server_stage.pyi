from tests.server.server_stage import *  # noqa: F403
