from tests.providers.openai_compatible.chat_values import *  # noqa: F403
