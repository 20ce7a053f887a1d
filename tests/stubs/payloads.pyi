from tests.workbench.payloads import *  # noqa: F403
