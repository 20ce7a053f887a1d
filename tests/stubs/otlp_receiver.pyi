from tests.trace.otlp_receiver import *  # noqa: F403
