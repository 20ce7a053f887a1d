"""Descriptions of tools for a model: stubs in its language, a guide for the prompt, and a search."""
