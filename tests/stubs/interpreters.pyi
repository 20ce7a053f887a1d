from tests.running.interpreters import *  # noqa: F403
