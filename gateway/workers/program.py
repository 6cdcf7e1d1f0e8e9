"""The worker's program and the environment that it runs in."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import gateway
from gateway.system.memory import BackEnd, back_end

WORKER: Final = Path(gateway.__file__).resolve().parent.parent / "worker" / "__main__.py"

# Workers never ask a model hub, and never use the fast synchronization that strands wired memory
# when its process dies (mlx#3830).
_SET: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
# glibc keeps freed buffers up to the largest size that it has seen freed, which fragments, and
# held a third more than MLX did. Its initial threshold, once set, stays (mallopt(3)). A card has
# memory of its own, and weights come through buffers of glibc's: new from the system each time they
# took a third longer to read.
_GIVEN_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": "131072"}
# What a program finds its own things by, and MLX, CUDA, tokenizers and Python take. Everything else
# stays here: a worker runs what models' files have it run, and among the rest are the admin key,
# headers of collectors, and whatever a shell was given.
_PASSED: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TMP|TEMP|TERM|TZ|TZDIR|LANG|LANGUAGE|VIRTUAL_ENV"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|(?i:(https?|all|no)_proxy)|__CF_USER_TEXT_ENCODING"
    r"|(LC|XDG|CONDA|PYTHON|LD|DYLD|MALLOC|GLIBC|OMP|KMP|MKL|OPENBLAS|VECLIB|OBJC|OS_ACTIVITY"
    r"|MLX|METAL|MTL|CUDA|CUDNN|CUBLAS|CUFFT|NVIDIA|NVRTC|NCCL|UCX|HF|HUGGINGFACE|TRANSFORMERS"
    r"|TOKENIZERS|COVERAGE)(_.*|[A-Z]+)"
)
_SECRETS: Final = re.compile(r"(^|_)(TOKENS?|KEYS?|SECRETS?|PASSWORDS?|CREDENTIALS?|AUTH)(_|$)")
_REMOVED: Final = "MLX_METAL_FAST_SYNCH"


def worker_environment() -> dict[str, str]:
    """The variables of a worker that this process starts."""
    settings = _SET if back_end() is BackEnd.CUDA else _SET | _GIVEN_BACK
    return {k: v for k, v in os.environ.items() if _passed(k)} | settings


def _passed(name: str) -> bool:
    known = _PASSED.fullmatch(name) and not _SECRETS.search(name)
    return bool(known) and name != _REMOVED
