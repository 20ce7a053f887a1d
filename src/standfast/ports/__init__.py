"""Every protocol that the kernel requires from outside."""
