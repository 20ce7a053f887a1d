"""Model providers. Import a provider from its own module; this one loads none of them.

`resolve` finds a provider by its name. `openai`, `openai_compatible`, `anthropic` and `google` are vendors,
in folders with the same four files (`request`, `reply_reader`, `errors`, `model`) over `http`. `scripted`
replays a script. `recorded`, `cached`, `fallback` and `rate_limit` are models around other models. `catalog`
says what a model can do, `vendors` where the vendors are and which variables hold their keys.
"""
