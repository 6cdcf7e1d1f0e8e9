"""The models of measurements."""

from __future__ import annotations

import subprocess
import sys


def test_a_process_that_builds_no_model_holds_no_mlx() -> None:
    code = "import sys, bench.crowd, bench.swap; print('mlx.core' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
