from tests.worker.hosts import *  # noqa: F403
