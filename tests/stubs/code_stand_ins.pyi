from tests.runtime.code_stand_ins import *  # noqa: F403
