"""What tells the service's gateway from one that was started by hand: a variable that only its
definition sets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil

from gateway.system.state_dir import lock_holder

LABEL: Final = "io.bulkhead.gateway"
MARK: Final = "BULKHEAD_SERVICE"
# With what exit status a gateway ends that has a mistake in its configuration.
MISTAKE_STATUS: Final = "BULKHEAD_MISTAKE_STATUS"


def service_pid(state_dir: Path) -> int | None:
    """The pid of the gateway that uses a state folder, if the service manager has started it."""
    pid = lock_holder(state_dir)
    try:
        if pid is not None and psutil.Process(pid).environ().get(MARK) == LABEL:
            return pid
    except psutil.Error:
        pass
    return None
