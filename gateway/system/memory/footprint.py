"""What a process really holds: what the system would get back if it ended.

Resident size misleads in both directions: on macOS it leaves out Metal's memory, and everywhere it
counts file pages that others share.
"""

from __future__ import annotations

import sys

from gateway.system.memory.reading import Footprint, FootprintError

if sys.platform == "darwin":
    from gateway.system.memory.footprint_darwin import FootprintGauge, footprint
else:
    from gateway.system.memory.footprint_linux import FootprintGauge, footprint

__all__ = ["Footprint", "FootprintError", "FootprintGauge", "footprint"]
