from tests.server.encoders.node_client import *  # noqa: F403
