"""What users hold in their hands."""

from holdfast.runtime.blocking import BlockingSandbox
from holdfast.runtime.sandbox import Sandbox, SandboxOptions
from holdfast.tools.builtin.mounts import Mount

__all__ = ["BlockingSandbox", "Mount", "Sandbox", "SandboxOptions"]
