"""The program that runs in the jail. It uses only the standard library and the socket to its host.

`boot` confines the process and forks it into a supervisor, which watches the socket, and the guest, which
reads a run from the socket, executes it in the session's namespace and sends the result. For everything
outside (a call, the time, randomness, a value by name) guest code sends a request to the host and waits.

Nothing here imports Standfast, because Standfast is not visible in the jail; modules use relative imports.
The host trusts nothing here once guest code has run, because guest code can modify every object of this
process.
"""

from typing import Final

TRIED_BYTES: Final = 1 << 20
"""Up to this size, the guest itself checks that the objects it has packed can be loaded again."""
