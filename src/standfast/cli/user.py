"""The person at the command line."""

from __future__ import annotations


def this_user() -> str:
    """The name of the operating system's user who runs this process; its number if it has no name."""
    import os

    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError, AttributeError):
        import getpass

        try:
            return getpass.getuser()
        except (KeyError, OSError, ImportError):
            return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
