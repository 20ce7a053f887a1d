"""MCP in both directions: MCP servers' tools for agents, and Standfast as an MCP server."""
