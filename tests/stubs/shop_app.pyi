from tests.worker.shop_app import *  # noqa: F403
