"""MCP, both ways: the tools of MCP servers for agents, and Standfast as an MCP server."""
