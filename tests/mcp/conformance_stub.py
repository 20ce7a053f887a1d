"""The command that the conformance suite starts for each client scenario; the client runs in the test."""

import json
import os
import socket
import sys

if __name__ == "__main__":
    names = ("SCENARIO", "CONTEXT", "PROTOCOL_VERSION")
    message = {name: os.environ.get(f"MCP_CONFORMANCE_{name}") for name in names}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        connection.sendall(json.dumps({**message, "url": sys.argv[2]}).encode() + b"\n")
        problem = connection.makefile().read()
    sys.exit(problem or 0)
