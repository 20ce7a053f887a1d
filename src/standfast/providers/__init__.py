"""Models, whoever serves them. Import a provider from its own module; this one loads none of them.

`standfast.providers.resolve` finds a provider by its name. Over `http` speak `openai`, `openai_compatible`,
`anthropic` and `google`; `scripted` replays a script. `recorded`, `cached`, `fallback` and `limited` are
models around other models. `catalog` tells what a model can do, `vendors` how those who serve them are
reached.
"""
