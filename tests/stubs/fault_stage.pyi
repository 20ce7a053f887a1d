from tests.providers.faults.fault_stage import *  # noqa: F403
