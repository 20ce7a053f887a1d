from tests.running.terminals import *  # noqa: F403
