from tests.mcp.conformance_client import *  # noqa: F403
