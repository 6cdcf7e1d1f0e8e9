"""Estimates of the configured models, with the contexts that are possible beside other models."""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from gateway.config.model import Model
from gateway.config.model_folders import (
    NotThereError,
    find_adapter,
    find_folder,
    find_model,
    find_program,
    hugging_face_cache,
)
from gateway.memory.admission import Admission
from gateway.memory.check_room import CheckRoom
from gateway.memory.commands import CommandEstimate, estimate_of_command, outline_of_command
from gateway.memory.estimate import Estimate
from gateway.memory.fitting import Learned, Outline, guess, outline_of, shortened, whole
from gateway.memory.weights import options_of
from gateway.system.events import EventLog
from gateway.system.file_access import away, denied
from gateway.system.lane import HangsError, Lane
from gateway.system.log_lines import about
from protocol.check import BESIDE_BYTES

logger = logging.getLogger(__name__)

# A disk that sleeps takes seconds to wake up.
_ANSWER_S: Final = 10.0
# These errors say that the system lacks resources now. They say nothing about the files.
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


class UnreadableFilesError(Exception):
    """The files of a model can't be read now, and may be later. The message says why."""


class AbsentError(UnreadableFilesError):
    """The disk of a model's files isn't mounted. `gateway.models.disks` looks out for the disk."""


class Estimated(Struct, frozen=True):
    """An estimate, and the `key` by which the model's measurements are kept."""

    key: str
    estimate: Estimate


class RoughEstimate(Struct, frozen=True):
    """The bytes to ask for if a model's files aren't understood, and `why` they aren't."""

    bytes: int
    why: str


def _estimate(
    model: Model, ordinary_tokens: int, learned: Learned
) -> Estimated | RoughEstimate | CommandEstimate:
    """Raises: UnreadableFilesError; OSError: the system lacks resources for reading now."""
    settings = model.settings
    if model.is_command:
        try:
            # A program that can't be started must not cost another model its memory.
            find_program(settings.command[0], settings.folder)
            return estimate_of_command(settings, learned)
        except NotThereError as error:
            raise UnreadableFilesError(str(error)) from error
        except OSError as error:
            raise UnreadableFilesError(f"{error.filename}: {error.strerror}.") from error
    for place in _places(model):
        if (absent := away(place)) is not None:
            raise AbsentError(str(absent))
    try:
        find_model(model.source, ())
        if model.draft is not None:
            find_model(model.draft, ())
        if model.adapter is not None:
            find_adapter(model.adapter, ())
    except ValueError as error:
        raise UnreadableFilesError(str(error)) from error
    try:
        folder = find_folder(model.source)
        key, whole_estimate = whole(
            folder,
            settings.context_tokens,
            ordinary_tokens,
            settings.python,
            learned,
            options_of(model),
        )
        return Estimated(key, whole_estimate)
    except Exception as error:
        _raise_what_may_pass(error)
        why = str(error) or repr(error)
    try:
        guessed_bytes = guess(find_folder(model.source), learned.process_bytes, options_of(model))
        return RoughEstimate(guessed_bytes, why)
    except Exception as error:
        _raise_what_may_pass(error)
        # The worker will report the fault better, once it has room to start.
        return RoughEstimate(learned.process_bytes, why)


def _places(model: Model) -> Iterator[Path]:
    source = Path(model.source)
    yield source if source.is_absolute() else hugging_face_cache()
    yield from (Path(text) for text in (model.adapter, model.draft) if text is not None)


def _raise_what_may_pass(error: BaseException) -> None:
    if (sentence := denied(error)) is not None:
        raise UnreadableFilesError(sentence) from error
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and cause.errno in _SHORTAGES:
        raise cause


# A worker that holds less than this share of the estimate hasn't read all weights yet.
_PLAUSIBLE: Final = 0.9


class Known(Struct, frozen=True, kw_only=True):
    """The estimates of one model, which a gateway hands over to the next gateway."""

    key: str | None
    estimate: Estimate | None
    whole: Estimate | None
    attainable_bytes: int | None


class Estimator:
    """Makes and keeps the estimates of all models, on the event loop. The files of each source are
    read in a lane of their own: a disk that hangs delays only its own models, and takes one thread
    for each source.
    """

    def __init__(
        self, admission: Admission, learned: Learned, ordinary_tokens: int, events: EventLog
    ) -> None:
        """At its load each model must have room for a sequence of `ordinary_tokens`."""
        self.ordinary_tokens = ordinary_tokens
        self._admission = admission
        self._learned = learned
        self._events = events
        self._lanes: dict[str, Lane] = {}
        # The estimates by models: with the context in force, and with the whole context.
        self.all: dict[str, Estimate] = {}
        self._whole: dict[str, Estimate] = {}
        self._keys: dict[str, str] = {}
        self.commands: dict[str, CommandEstimate] = {}
        # The most bytes that each loaded model could get in the last round.
        self._attainable: dict[str, int] = {}

    async def _estimate(self, model: Model) -> Estimated | RoughEstimate | CommandEstimate:
        """Estimate a model with its whole context.

        Raises:
            UnreadableFilesError: the disk doesn't answer in time, the files aren't there, the
                system denies access, or there are no threads or descriptors left.
        """
        lane = self._lanes.setdefault(model.source, Lane(f"estimate {model.id}"))
        read = functools.partial(_estimate, model, self.ordinary_tokens, self._learned)
        try:
            return await lane.run(read, _ANSWER_S, f"{model.source}")
        except HangsError as error:
            raise UnreadableFilesError(f"{error}: is it on a mount that has died?") from error
        except OSError as error:
            raise UnreadableFilesError(f"{model.source} can't be read now: {error}.") from error

    async def needed_bytes(self, model: Model) -> int:
        """The floor that a model asks for. The estimate is remembered.

        Raises:
            UnreadableFilesError: the model's files can't be read now.
        """
        estimated = await self._estimate(model)
        if isinstance(estimated, CommandEstimate):
            self.commands[model.id] = estimated
            self.all.pop(model.id, None)
            return estimated.bytes
        if isinstance(estimated, RoughEstimate):
            logger.warning(
                "%s: no estimate: %s", model.id, estimated.why, extra=about(model=model.id)
            )
            self.all.pop(model.id, None)
            return estimated.bytes
        self._keys[model.id] = estimated.key
        self._whole[model.id] = estimated.estimate
        possible_bytes = self._admission.ledger.possible_for(model.id)
        self.all[model.id] = shortened(estimated.estimate, possible_bytes)
        return self.all[model.id].floor_bytes

    async def floor_bytes(self, model: Model) -> int:
        """The floor that a model would ask for now.

        Raises:
            UnreadableFilesError: the model's files can't be read now.
        """
        estimated = await self._estimate(model)
        if not isinstance(estimated, Estimated):
            return estimated.bytes
        possible_bytes = self._admission.ledger.possible_for(model.id)
        return shortened(estimated.estimate, possible_bytes).floor_bytes

    async def check_room(self, model: Model) -> CheckRoom:
        """The memory that a check of a model wants: at least the floor with `BESIDE_BYTES`, and
        if it is free also room for the whole context.

        Raises:
            UnreadableFilesError: the model's files can't be read now.
        """
        # A check computes the whole model in one process.
        alone = msgspec.structs.replace(model.settings, local=1, ranks=())
        estimated = await self._estimate(msgspec.structs.replace(model, settings=alone))
        if not isinstance(estimated, Estimated):
            bytes_ = estimated.bytes + BESIDE_BYTES
            return CheckRoom(model.id, bytes_, bytes_)
        whole = estimated.estimate
        floor_bytes = shortened(whole, self._admission.ledger.usable_bytes).floor_bytes
        return CheckRoom(model.id, floor_bytes + BESIDE_BYTES, whole.whole_bytes + BESIDE_BYTES)

    async def outline(self, model: Model, company: dict[str, int]) -> Outline | None:
        """The outline of a model; None if its files aren't understood.

        Raises:
            UnreadableFilesError: the files can't be read now.
        """
        estimated = await self._estimate(model)
        if isinstance(estimated, RoughEstimate):
            return None
        ledger = self._admission.ledger
        possible_bytes = ledger.possible_for(model.id)
        reserved_bytes = ledger.usable_bytes - possible_bytes
        if isinstance(estimated, CommandEstimate):
            return outline_of_command(estimated, max(0, possible_bytes), reserved_bytes, company)
        return outline_of(estimated.estimate, max(0, possible_bytes), reserved_bytes, company)

    def key_of(self, model_id: str, fixed_bytes: int) -> str | None:
        """The key by which to keep the `fixed_bytes` of a model's worker; None: don't keep them."""
        key, estimated = self._keys.get(model_id), self.all.get(model_id)
        if estimated is None or fixed_bytes < estimated.calculated_fixed_bytes * _PLAUSIBLE:
            # Not all weights are in memory yet: with this number the next floor would be too small.
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
        """Go on from the estimates of an earlier gateway."""
        if known.key is not None:
            self._keys[model_id] = known.key
        if known.estimate is not None and known.whole is not None:
            self.all[model_id], self._whole[model_id] = known.estimate, known.whole
        if known.attainable_bytes is not None:
            self._attainable[model_id] = known.attainable_bytes

    def gone(self, model_id: str) -> None:
        """Forget the attainable bytes of a model whose process has ended."""
        self._attainable.pop(model_id, None)

    def follow(self, model_id: str) -> None:
        """Fit a loaded model's context anew if the bytes that it could get have changed, as by
        pins, by the budget or by stranded memory.
        """
        bytes_ = self._admission.ledger.attainable_bytes(model_id)
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
