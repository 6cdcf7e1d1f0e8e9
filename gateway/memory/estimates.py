"""What each model was found to need, with the context that is possible beside the others."""

from __future__ import annotations

import logging
from typing import Final

from msgspec import Struct

from gateway.config.model import Model
from gateway.memory.admission import Admission
from gateway.memory.appraiser import Appraiser, Guessed
from gateway.memory.estimate.estimate import Estimate
from gateway.memory.estimate.fitting import shortened
from gateway.memory.estimate.outline import Outline, outline_of
from gateway.system.events import EventLog
from gateway.system.log_lines import about

logger = logging.getLogger(__name__)

# A worker that holds less than this part of its weights and process hasn't read them all.
_PLAUSIBLE: Final = 0.9


class Known(Struct, frozen=True, kw_only=True):
    """Of one model, for another gateway to go on from."""

    key: str | None
    estimate: Estimate | None
    whole: Estimate | None
    attainable_bytes: int | None


class Estimates:
    """On the event loop; files are read beside it."""

    def __init__(self, admission: Admission, appraiser: Appraiser, events: EventLog) -> None:
        self._admission = admission
        self._appraiser = appraiser
        self._events = events
        # With the context that is possible, and with the whole one.
        self.all: dict[str, Estimate] = {}
        self._whole: dict[str, Estimate] = {}
        self._keys: dict[str, str] = {}
        # What each could get at best in the last round.
        self._attainable: dict[str, int] = {}

    async def needed_bytes(self, model: Model) -> int:
        """What a model asks for, which is kept in mind.

        Raises:
            UnreadableError: its files can't be read now.
        """
        found = await self._appraiser.appraise(model)
        if isinstance(found, Guessed):
            logger.warning("%s: no estimate: %s", model.id, found.why, extra=about(model=model.id))
            self.all.pop(model.id, None)
            return found.bytes
        self._keys[model.id] = found.key
        self._whole[model.id] = found.estimate
        possible_bytes = self._admission.ledger.possible_for(model.id)
        self.all[model.id] = shortened(found.estimate, possible_bytes)
        return self.all[model.id].floor_bytes

    async def floor_bytes(self, model: Model) -> int:
        """What a model will ask for, as things are.

        Raises:
            UnreadableError: its files can't be read now.
        """
        found = await self._appraiser.appraise(model)
        if isinstance(found, Guessed):
            return found.bytes
        possible_bytes = self._admission.ledger.possible_for(model.id)
        return shortened(found.estimate, possible_bytes).floor_bytes

    async def outline(self, model: Model, company: dict[str, int]) -> Outline | None:
        """What is to be told of it; None if its files aren't understood.

        Raises:
            UnreadableError: they can't be read now.
        """
        found = await self._appraiser.appraise(model)
        if isinstance(found, Guessed):
            return None
        ledger = self._admission.ledger
        possible_bytes = ledger.possible_for(model.id)
        kept_bytes = ledger.usable_bytes - possible_bytes
        return outline_of(found.estimate, max(0, possible_bytes), kept_bytes, company)

    def key_of(self, model_id: str, fixed_bytes: int) -> str | None:
        """By what its worker's `fixed_bytes` are kept; None if they are to be kept by nothing."""
        key, estimated = self._keys.get(model_id), self.all.get(model_id)
        if estimated is None or fixed_bytes < estimated.calculated_fixed_bytes * _PLAUSIBLE:
            # Not all of the weights are in memory yet: a floor for less would be broken at once.
            return None
        return key

    def known(self, model_id: str) -> Known:
        return Known(
            key=self._keys.get(model_id),
            estimate=self.all.get(model_id),
            whole=self._whole.get(model_id),
            attainable_bytes=self._attainable.get(model_id),
        )

    def adopt(self, model_id: str, known: Known) -> None:
        """Go on from what an earlier gateway knew."""
        if known.key is not None:
            self._keys[model_id] = known.key
        if known.estimate is not None and known.whole is not None:
            self.all[model_id], self._whole[model_id] = known.estimate, known.whole
        if known.attainable_bytes is not None:
            self._attainable[model_id] = known.attainable_bytes

    def gone(self, model_id: str) -> None:
        """Its process has ended: it can get nothing."""
        self._attainable.pop(model_id, None)

    def follow(self, model_id: str) -> None:
        """Contexts follow what is possible: pins, other budgets and lost memory change it."""
        bytes_ = self._admission.attainable_bytes(model_id)
        before_bytes = self._attainable.get(model_id)
        if bytes_ is None or bytes_ == before_bytes:
            return
        self._attainable[model_id] = bytes_
        before = self.all.get(model_id)
        if before is not None:
            self.all[model_id] = after = shortened(self._whole[model_id], bytes_)
            if before_bytes is not None and after.context_tokens != before.context_tokens:
                self._events.emit(
                    "context",
                    model_id,
                    context_tokens=after.context_tokens,
                    before_tokens=before.context_tokens,
                    attainable_bytes=bytes_,
                )
