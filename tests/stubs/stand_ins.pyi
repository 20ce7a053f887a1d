from tests.runtime.stand_ins import *  # noqa: F403
