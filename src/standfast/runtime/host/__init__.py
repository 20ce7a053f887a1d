"""The host services, which plugins, tools and host programs may call while the runtime is open."""
