from tests.trace.trace_stand_ins import *  # noqa: F403
