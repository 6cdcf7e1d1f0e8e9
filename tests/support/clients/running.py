"""Clients that are programs of their own, run beside the tests' environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CLIENTS = Path(__file__).parent
ENVIRONMENT = Path(sys.prefix)
NODE = shutil.which("node")


def run(*command: str | Path, npm: Path | None = None) -> Any:
    """The JSON in the last line that a client prints. `npm` is where a script finds its packages.

    Raises:
        AssertionError: it failed, and says why.
    """
    environment = {
        **os.environ,
        "NODE_PATH": str(npm or ""),
        # What LiteLLM would look up on the internet.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
