"""Where the numbers come from."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from bench.results import MeasuringMachine


def describe_machine() -> MeasuringMachine:
    return MeasuringMachine(
        processor=_processor(),
        cores=os.cpu_count() or 0,
        system=_system(),
        python=platform.python_version(),
        mlx=version("mlx"),
        mlx_lm=version("mlx-lm"),
    )


def _processor() -> str:
    if sys.platform == "darwin":
        return subprocess.check_output(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], text=True
        ).strip()
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    return f"{platform.system()} {platform.release()}"
