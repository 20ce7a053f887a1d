from tests.mcp.mcp_http import *  # noqa: F403
