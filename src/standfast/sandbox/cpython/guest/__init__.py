"""The program that runs in the jail: it knows nothing but the standard library and the socket to its host.

`boot` confines the process and splits it: a supervisor that watches the socket, and the guest proper, which
reads a run from the socket, runs it in the session's namespace and answers with its end. For everything
outside (a call, the time, chance, a value by name) the code asks the host, and waits.

Nothing here imports Standfast: the jail does not show it. Modules import each other relatively. The host
trusts nothing here once guest code has run: code can rewrite every object of this process.
"""

from typing import Final

TRIED_BYTES: Final = 1 << 20
"""Up to this size, the guest itself tries whether objects that it has packed can be loaded again."""
