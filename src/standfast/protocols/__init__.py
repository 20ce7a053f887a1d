"""How a model acts: native tool calls, or code."""
