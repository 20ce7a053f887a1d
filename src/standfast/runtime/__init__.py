"""The runtime, laid out by what a reader looks for.

The façade is here: `agent`, `agent_runtime` (Runtime), `agent_session` (Session), `turn`, `result` and
`sandbox`. `sessions` finds, makes, keeps and recovers sessions; `turns` runs one turn; `host` has the
services that plugins, tools and host programs may ask for; `monitors` watches processes.
"""
