from tests.worker.balancer import *  # noqa: F403
