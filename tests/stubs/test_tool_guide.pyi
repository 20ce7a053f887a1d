from tests.protocols.tool_docs.test_tool_guide import *  # noqa: F403
