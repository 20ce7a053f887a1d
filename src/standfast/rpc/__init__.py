"""JSON-RPC over stdio and unix sockets: the sandbox daemon, and agents for editors (ACP)."""
