from tests.durable.driver_bench import *  # noqa: F403
