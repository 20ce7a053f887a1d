from tests.rpc.editor_app import *  # noqa: F403
