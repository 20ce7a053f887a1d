from tests.providers.asking import *  # noqa: F403
