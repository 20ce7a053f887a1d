from tests.protocols.code.code_turns import *  # noqa: F403
