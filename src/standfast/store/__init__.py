"""Where sessions are stored. Import a store from its own module; this one loads none of them.

`standfast.store.memory_sessions` forgets with the process, `standfast.store.sqlite.sessions` is one file.
What both decide is in `standfast.store.rules`.
"""
