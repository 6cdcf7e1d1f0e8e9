"""What Python's collector of cycles needn't look at."""

from __future__ import annotations

import gc


def leave_imports_alone() -> None:
    """What is there now stays until the end. To look through it takes as long as several tokens: 30
    ms of some answer in each worker's life, once or more often.
    """
    gc.collect()
    gc.freeze()
