from tests.runtime.plugin_stand_ins import *  # noqa: F403
