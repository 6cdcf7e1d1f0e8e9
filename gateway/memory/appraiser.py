"""What a model needs, asked of its files, which may be on a mount that has died."""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from gateway.config.model import Model
from gateway.config.model_folders import find_adapter, find_folder, find_model, hugging_face_cache
from gateway.memory.estimate.estimate import Estimate
from gateway.memory.estimate.fitting import guess, whole
from gateway.memory.estimate.learned import Learned
from gateway.memory.estimate.options import options_of
from gateway.system.lane import HangsError, Lane
from gateway.system.machine import away, denied

# A disk that sleeps takes seconds to wake up.
_ANSWER_S: Final = 10.0
# What is short just now says nothing of the files.
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


class UnreadableError(Exception):
    """The files can't be read now, and may be later; the text says why."""


class AbsentError(UnreadableError):
    """Their disk isn't mounted. Somebody looks out for it."""


class Appraised(Struct, frozen=True):
    """`key` is what measurements of it are kept by."""

    key: str
    estimate: Estimate


class Guessed(Struct, frozen=True):
    """Bytes to ask for where the files aren't understood, and what isn't."""

    bytes: int
    why: str


class Appraiser:
    """Reads each place in a lane of its own: one that hangs costs its own models only, and one
    thread, however often it is asked for.
    """

    def __init__(self, learned: Learned, ordinary_tokens: int) -> None:
        """`ordinary_tokens` of a sequence are to be had at a load."""
        self.ordinary_tokens = ordinary_tokens
        self._learned = learned
        self._lanes: dict[str, Lane] = {}

    async def appraise(self, model: Model) -> Appraised | Guessed:
        """With its whole context.

        Raises:
            UnreadableError: no answer comes in time, it isn't there, the system keeps it from us,
                or there are no threads or descriptors left.
        """
        lane = self._lanes.setdefault(model.source, Lane(f"estimate {model.id}"))
        appraise = functools.partial(_appraise, model, self.ordinary_tokens, self._learned)
        try:
            return await lane.run(appraise, _ANSWER_S, f"{model.source}")
        except HangsError as error:
            raise UnreadableError(f"{error}: is it on a mount that has died?") from error
        except OSError as error:
            raise UnreadableError(f"{model.source} can't be read now: {error}.") from error


def _appraise(model: Model, ordinary_tokens: int, learned: Learned) -> Appraised | Guessed:
    """Raises: OSError if something is short just now that reading takes; UnreadableError."""
    settings = model.settings
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
        raise UnreadableError(str(error)) from error
    try:
        folder = find_folder(model.source)
        key, found = whole(
            folder,
            settings.context_tokens,
            ordinary_tokens,
            settings.python,
            learned,
            options_of(model),
        )
        return Appraised(key, found)
    except Exception as error:
        _raise_what_may_pass(error)
        why = str(error) or repr(error)
    try:
        guessed_bytes = guess(find_folder(model.source), learned.process_bytes, options_of(model))
        return Guessed(guessed_bytes, why)
    except Exception as error:
        _raise_what_may_pass(error)
        # The worker will find out more, and say it better.
        return Guessed(learned.process_bytes, why)


def _places(model: Model) -> Iterator[Path]:
    source = Path(model.source)
    yield source if source.is_absolute() else hugging_face_cache()
    yield from (Path(each) for each in (model.adapter, model.draft) if each is not None)


def _raise_what_may_pass(error: BaseException) -> None:
    if (sentence := denied(error)) is not None:
        raise UnreadableError(sentence) from error
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and cause.errno in _SHORTAGES:
        raise cause
