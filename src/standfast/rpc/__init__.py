"""JSON-RPC over stdio and unix sockets: the sandbox's daemon, and agents for editors (ACP)."""
