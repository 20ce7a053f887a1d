from tests.sandbox.attacks.large_values import *  # noqa: F403
