"""Where things are kept. Import a store from its own module; this one loads none of them.

`holdfast.store.memory` forgets with the process, `holdfast.store.sqlite.sandbox` is one file.
"""
