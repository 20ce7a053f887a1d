"""The host services: what plugins, tools and host programs may ask of the runtime while it runs."""
