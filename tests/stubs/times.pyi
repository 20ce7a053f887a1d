from tests.running.times import *  # noqa: F403
