from tests.worker.restate_host import *  # noqa: F403
