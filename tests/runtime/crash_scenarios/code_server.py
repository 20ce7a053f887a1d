"""The fork server, for turns whose model acts in code."""

from __future__ import annotations

import code_scenarios
import fork_server

import standfast.protocols.code.plugin
import standfast.sandbox.monty.cell_engine  # noqa: F401 (imported here, so that no child has to)

vars(fork_server)["scenarios"] = code_scenarios

if __name__ == "__main__":
    fork_server.main()
