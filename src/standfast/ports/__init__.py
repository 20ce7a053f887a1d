"""The ports: protocols that the kernel requires and outer layers implement."""
