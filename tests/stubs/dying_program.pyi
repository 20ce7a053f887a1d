from tests.runtime.host.dying_program import *  # noqa: F403
