from tests.providers.faults.fault_table import *  # noqa: F403
