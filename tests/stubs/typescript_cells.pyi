from tests.protocols.code.typescript_cells import *  # noqa: F403
