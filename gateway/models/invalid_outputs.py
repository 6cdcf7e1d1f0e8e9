"""Answers of one model whose logits weren't valid: they are counted, tried again, or refused, as
`gateway.workers.output_policy` says.
"""

from __future__ import annotations

import logging
from typing import Final

from gateway.config.model import Model
from gateway.models.lifecycle import ModelEvent, State
from gateway.models.model_memory import ModelParts
from gateway.requests import refusals
from gateway.system.events import EventLog
from gateway.system.log_lines import about
from gateway.workers.output_policy import NextTry, OutputPolicy
from protocol.answers import OutputInvalid

logger = logging.getLogger(__name__)

_NO_WORKER: Final = (State.UNLOADED, State.HELD, State.BACKOFF, State.FAILED)


class InvalidOutputs:
    """The invalid outputs of one model. `count` is the number of tries that failed."""

    def __init__(self, parts: ModelParts, events: EventLog) -> None:
        self.count = 0
        self._condition, self._traffic = parts.condition, parts.traffic
        self._model_memory = parts.model_memory
        self._events = events
        self._policy = OutputPolicy()

    @property
    def plain(self) -> bool:
        """Whether the worker has no quantized caches, and makes no guesses."""
        return self._policy.plain

    def restore(self, *, plain: bool, count: int) -> None:
        """Go on with the worker of an earlier gateway."""
        self._policy.plain = plain
        self.count = count

    def starting(self) -> None:
        """A worker is about to be admitted, so this decides whether it is plain."""
        self._policy.starting()

    def as_loaded(self, model: Model) -> Model:
        """The model with the settings that its worker has."""
        return model.plain if self.plain else model

    def entered(self) -> None:
        """Take in the state that the model has entered."""
        if self._condition.state is State.READY:
            self._policy.ready()
        elif self._condition.state in _NO_WORKER:
            self._policy.given_up()

    def record(self, message: OutputInvalid, pid: int) -> None:
        """Count a try that failed. If the worker has given up, have the answer tried in another
        worker, or refuse it.
        """
        self.count += 1
        request = self._traffic.queue.find_running(message.request_id)
        if request is None:
            return  # Cancelled or parked meanwhile.
        model_id = self._model_memory.model.id
        next_try = self._policy.failed(goes_on=message.goes_on)
        self._events.emit(
            "output_invalid",
            model_id,
            pid=pid,
            request=request.id,
            delivered_tokens=len(request.progress.delivered),
            next_try=str(next_try),
            quarantined_blocks=message.quarantined_blocks,
        )
        match next_try:
            case NextTry.NONE:
                fresh = request.progress.cold
                self._traffic.refuse(request, refusals.invalid_output(model_id, fresh=fresh))
            case NextTry.PLAIN:
                self._traffic.park_cold(request)
                self._replace_worker(model_id, pid)
            case NextTry.COLD:
                pass

    def _replace_worker(self, model_id: str, pid: int) -> None:
        """End the worker. A worker that drains ends anyway."""
        if self._condition.state is not State.READY:
            return
        reason = f"the numbers of an answer weren't valid twice, so it is tried {NextTry.PLAIN}"
        logger.error(
            "%s: worker %d is ended: %s",
            model_id,
            pid,
            reason,
            extra=about(model=model_id, pid=pid),
        )
        self._condition.handle(ModelEvent.INVALID, reason)
