from tests.docs.docblocks import *  # noqa: F403
