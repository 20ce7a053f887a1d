from tests.running.forked_workers import *  # noqa: F403
