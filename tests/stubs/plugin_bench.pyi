from tests.plugins.plugin_bench import *  # noqa: F403
