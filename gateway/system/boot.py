"""The present boot of the machine, by which records of earlier boots are told apart."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.platform == "linux":

    def present_boot() -> str:
        """An identifier of the present boot."""
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()

else:
    import functools

    from gateway.system.memory_darwin import Sysctl

    @functools.cache
    def present_boot() -> str:
        """An identifier of the present boot. kern.boottime, which psutil reads, would not do: it
        changes whenever the clock is set.
        """
        return Sysctl().text("kern.bootsessionuuid")
