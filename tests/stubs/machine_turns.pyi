from tests.machine.machine_turns import *  # noqa: F403
