"""The protocols, which define how a model acts: by native tool calls, or by writing code."""
