"""What all vendors share: HTTP, server-sent events, deadlines, keys and failures."""
