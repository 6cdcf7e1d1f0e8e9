"""Requests that schemathesis makes of a gateway's /openapi.json, with its own command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from tests.support.gateway import Gateway

# The models of such a gateway: one is asked, the other loaded, restarted and killed.
ASKED: Final = "demo"
ORDERED: Final = "other"
# A variable of the environment: where `openapi_hooks` writes the statuses to.
COUNTED_IN: Final = "TESTS_STATUSES"
# What the clients of a slow machine wait for.
_ANSWERED_S: Final = 120
_LONGEST_S: Final = 3000.0
_LEFT_OUT: Final = (
    # 503 and 507 are answers, and who may give them is in the document. No 500 is one.
    "not_a_server_error",
    # No schema says that an encoder takes no empty text, or which model looks at pictures.
    "positive_data_acceptance",
    # More may be taken than the document promises, as a text block that doesn't say its type.
    "negative_data_rejection",
    # /v1/responses/input_tokens has the methods of /v1/responses/{id} too: it could be an id.
    "allow_header_conformance",
)
_SCHEMATHESIS: Final = str(Path(sys.executable).with_name("schemathesis"))


def ask_at_random(
    gateway: Gateway,
    folder: Path,
    phases: str,
    examples: int,
    *options: str,
    key: str | None = None,
) -> Counter[int]:
    """So many examples of each operation, as `phases` has them; returns the answers by status.

    Raises AssertionError with what schemathesis found, and how to ask for it again.
    """
    counted = folder / "statuses.json"
    command = [_SCHEMATHESIS, "run", f"{gateway.url}/openapi.json"]
    command += ["--phases", phases, "--max-examples", str(examples)]
    command += ["--checks", "all", "--exclude-checks", ",".join(_LEFT_OUT)]
    command += ["--request-timeout", str(_ANSWERED_S), "--generation-database", "none"]
    command += ["--continue-on-failure", "--suppress-health-check", "all", "--no-color", *options]
    if key is not None:
        command += ["--header", f"Authorization: Bearer {key}"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "SCHEMATHESIS_HOOKS": "tests.support.openapi_hooks",
            COUNTED_IN: str(counted),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    found: dict[str, int] = json.loads(counted.read_text("utf-8"))
    return Counter({int(status): count for status, count in found.items()})


def but(*operations: str) -> list[str]:
    """Options that leave these out, by the ids that the document has."""
    return [text for name in operations for text in ("--exclude-operation-id", name)]
