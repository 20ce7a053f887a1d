from tests.providers.http.plain_vendor import *  # noqa: F403
