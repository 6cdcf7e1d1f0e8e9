"""Which boot of the machine this is: some facts are true until the next one."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

if sys.platform == "linux":

    def present_boot() -> str:
        """What differs between boots and doesn't change within one."""
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()

else:

    def present_boot() -> str:
        """What differs between boots and doesn't change within one."""
        return str(int(psutil.boot_time()))
