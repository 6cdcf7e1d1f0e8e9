"""What every measurement can be told on its command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.config.model_folders import DEMO_FOLDER


def parser(
    module: str,
    description: str | None,
    *,
    rounds: int,
    model: Path | None = DEMO_FOLDER,
    shown: str = "the demo model",
) -> argparse.ArgumentParser:
    """One that knows `--rounds` and `--model`; `shown` says what the default model is."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    made.add_argument("--rounds", type=int, default=rounds, metavar="N")
    made.add_argument(
        "--model", type=Path, default=model, metavar="FOLDER", help=f"what to serve [{shown}]"
    )
    return made
