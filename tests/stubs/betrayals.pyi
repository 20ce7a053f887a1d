from tests.providers.secrets.betrayals import *  # noqa: F403
