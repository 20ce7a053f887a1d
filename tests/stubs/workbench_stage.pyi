from tests.workbench.workbench_stage import *  # noqa: F403
