from tests.worker.fleet import *  # noqa: F403
