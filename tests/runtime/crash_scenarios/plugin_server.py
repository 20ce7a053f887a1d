"""The fork server, for turns with plugins."""

from __future__ import annotations

import fork_server
import plugin_scenarios

vars(fork_server)["scenarios"] = plugin_scenarios

if __name__ == "__main__":
    fork_server.main()
