"""Which boot of the machine this is: some facts are true until the next one."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.platform == "linux":

    def present_boot() -> str:
        """What differs between boots and doesn't change within one."""
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()

else:
    import functools

    from gateway.system.sysctl_darwin import SysctlByName

    @functools.cache
    def present_boot() -> str:
        """What differs between boots and doesn't change within one.

        Not kern.boottime, which psutil tells: it is moved whenever the clock is set.
        """
        return SysctlByName().text("kern.bootsessionuuid")
