"""What macOS means by "no route to host" where there is one.

A LaunchAgent, and whatever it starts, may reach the local network only once somebody has allowed
that at the screen. Until then it gets EHOSTUNREACH, and with nobody at the screen no question is
asked. Daemons, root, and what a terminal or SSH has started are free (Apple's TN3179).
"""

from __future__ import annotations

import errno
import sys
from typing import Final

_ADVICE: Final = (
    ". macOS says that, too, to a LaunchAgent that may not reach the local network: allow Python "
    "at the screen (System Settings, Privacy & Security, Local Network), or have a daemon run it, "
    "which needs no permission: sudo bulkhead service install --system"
)


def advice(error: OSError, system: str = sys.platform) -> str:
    """What to say behind a failure to connect; empty: it is what it says."""
    return _ADVICE if system == "darwin" and error.errno == errno.EHOSTUNREACH else ""
