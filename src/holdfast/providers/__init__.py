"""Models, whoever serves them. Import a provider from its own module; this one loads none of them.

`holdfast.providers.scripted` replays a script, `holdfast.providers.resolve` finds a provider by its name.
"""
