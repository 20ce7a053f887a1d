from tests.worker.faults import *  # noqa: F403
