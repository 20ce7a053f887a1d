from tests.sandbox.attacks.shared_structure import *  # noqa: F403
