from tests.mcp.auth_server import *  # noqa: F403
