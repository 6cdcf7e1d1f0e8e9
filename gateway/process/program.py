"""The worker's program and the environment that it runs in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import gateway
from gateway.memory.back_end import BackEnd, back_end

WORKER: Final = Path(gateway.__file__).resolve().parent.parent / "worker" / "__main__.py"

# Workers never ask a model hub, and never use the fast synchronization that strands wired memory
# when its process dies (mlx#3830).
_SET: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
# glibc keeps freed buffers up to the largest size that it has seen freed, which fragments, and
# held a third more than MLX did. Its initial threshold, once set, stays (mallopt(3)). A card has
# memory of its own, and weights come through buffers of glibc's: new from the system each time they
# took a third longer to read.
_GIVEN_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": "131072"}
# Nor is the token for a hub any business of theirs.
_REMOVED: Final = ("MLX_METAL_FAST_SYNCH", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def worker_environment() -> dict[str, str]:
    """The variables of a worker that this process starts."""
    settings = _SET if back_end() is BackEnd.CUDA else _SET | _GIVEN_BACK
    return {k: v for k, v in os.environ.items() if k not in _REMOVED} | settings
