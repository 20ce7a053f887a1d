from tests.providers.faults.fault_vendors import *  # noqa: F403
