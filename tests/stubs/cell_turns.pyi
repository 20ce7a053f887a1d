from tests.durable.cell_turns import *  # noqa: F403
