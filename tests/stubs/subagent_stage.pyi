from tests.plugins.subagent_stage import *  # noqa: F403
