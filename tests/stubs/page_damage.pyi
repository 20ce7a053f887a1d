from tests.store.page_damage import *  # noqa: F403
