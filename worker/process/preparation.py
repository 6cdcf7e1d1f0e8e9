"""Requests become what the engine computes, on threads beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from protocol.answers import RequestFailed
from protocol.prompts import ChatPrompt
from protocol.requests import Embed, Generate

if TYPE_CHECKING:
    from worker.runtime.prompts import Prepared
    from worker.vectors.job import Job

logger = logging.getLogger("worker")

_TOKENIZER_THREADS: Final = 2
_COMPILER_THREADS: Final = 2


class Preparation:
    """`emit` is called with each outcome, from these threads."""

    def __init__(self, emit: Callable[[Prepared | Job | RequestFailed], None]) -> None:
        self._emit = emit
        self._tokenizers = ThreadPoolExecutor(_TOKENIZER_THREADS, "tokenizer")
        # One request's at a time: decoded they are large, and texts need not wait for them.
        self._decoder = ThreadPoolExecutor(1, "pictures")
        # A grammar may take half a second: other prompts don't wait for it.
        self._compilers = ThreadPoolExecutor(_COMPILER_THREADS, "compiler")

    def begin(
        self,
        prepare: Callable[[Generate | Embed], Prepared | Job | RequestFailed],
        task: Generate | Embed,
    ) -> None:
        self._threads_for(task).submit(self._prepare, prepare, task)

    def _threads_for(self, task: Generate | Embed) -> ThreadPoolExecutor:
        # A vector has no constraints.
        if isinstance(task, Embed):
            return self._tokenizers
        if isinstance(task.prompt, ChatPrompt) and task.prompt.pictures:
            return self._decoder
        free = task.constraint is None and task.tools is None
        return self._tokenizers if free else self._compilers

    def _prepare(
        self,
        prepare: Callable[[Generate | Embed], Prepared | Job | RequestFailed],
        task: Generate | Embed,
    ) -> None:
        try:
            outcome = prepare(task)
        except Exception:
            logger.exception("Tokenizing request %s failed", task.request_id)
            outcome = RequestFailed(
                request_id=task.request_id,
                code="internal_error",
                message="The prompt could not be tokenized; the worker's log has the traceback.",
            )
        self._emit(outcome)
