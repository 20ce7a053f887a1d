from tests.providers.secrets.planted_keys import *  # noqa: F403
