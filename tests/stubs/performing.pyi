from tests.tools.performing import *  # noqa: F403
