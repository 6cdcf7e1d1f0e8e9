"""A machine that is well, for faults to be planted on, one at a time."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.cli.terminal import BULKHEAD
from tests.support.ports import free_port

STATUS = {"ok": 0, "error": 1, "warning": 5}


class Machine:
    """A home, a state folder and a free port of its own, and the doctor on them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.state_dir = home / "state"
        self.config = home / "config.toml"
        self.path = os.environ["PATH"]
        self.environment: dict[str, str] = {}
        self.port = free_port()

    def configure(self, *lines: str) -> None:
        self.config.write_text("\n".join(lines))

    def run(self, *arguments: str, limit: int | None = None) -> subprocess.CompletedProcess[str]:
        """`limit` is of open files."""
        config = ("--config", str(self.config)) if self.config.exists() else ()
        where = ("--state-dir", str(self.state_dir), "--port", str(self.port))
        command = [*BULKHEAD, "doctor", *where, *config, *arguments]
        if limit is not None:
            command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *command]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BULKHEAD_", "XDG_", "HF_"))
        }
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**environment, "HOME": str(self.home), "PATH": self.path, **self.environment},
            timeout=150,
            check=False,
        )

    def findings(self, *arguments: str, limit: int | None = None) -> list[dict[str, Any]]:
        """Those that aren't ok. The exit status tells the worst, and stderr is empty."""
        done = self.run("--json", *arguments, limit=limit)
        assert done.stderr == ""
        answer = json.loads(done.stdout)
        assert done.returncode == STATUS[answer["worst"]]
        return [finding for finding in answer["findings"] if finding["severity"] != "ok"]

    def fault(self, *arguments: str, limit: int | None = None) -> tuple[str, str, str]:
        """Check, severity and evidence of the only thing that is wrong; it has a remedy."""
        findings = self.findings(*arguments, limit=limit)
        assert len(findings) == 1, findings
        (found,) = findings
        assert found["remedy"]
        return found["check"], found["severity"], found["evidence"]
