"""How often the prompt caches of models were found to be wrong, in a file of the state folder."""

from __future__ import annotations

import logging
from pathlib import Path

from msgspec import Struct

from gateway.system.state_file import read_state, write_state

logger = logging.getLogger(__name__)


class _FailuresFile(Struct, frozen=True):
    failures: dict[str, int]


class CacheFailures:
    """The failures by ids of models. A cache that is off so stays off over a restart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        content = read_state(path, _FailuresFile)
        self._failures = {} if content is None else dict(content.failures)

    def of(self, model_id: str) -> int:
        return self._failures.get(model_id, 0)

    def record(self, model_id: str, failures: int) -> None:
        """Record all failures of a model; 0 forgets them."""
        if failures == self.of(model_id):
            return
        self._failures[model_id] = failures
        if not failures:
            del self._failures[model_id]
        try:
            write_state(self._path, _FailuresFile(self._failures))
        except OSError as error:
            logger.warning("Failures of prompt caches can't be recorded: %s", error)
