"""The runtime, which runs turns of agents and code over a store.

The façade is in this package: `agent`, `agent_runtime` (Runtime), `agent_session` (Session), `turn`, `result`
and `sandbox`. `sessions` finds, creates, caches and recovers sessions; `turns` runs a single turn; `host` has
the services that plugins, tools and host programs may call; `monitors` watches processes.
"""
