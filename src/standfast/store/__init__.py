"""Where things are kept. Import a store from its own module; this one loads none of them.

`standfast.store.memory` forgets with the process, `standfast.store.sqlite.sandbox` is one file.
"""
