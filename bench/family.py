"""What this server can do with one architecture, tried on a small model of random weights."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import mlx.core as mx
import mlx_lm.utils
import mlx_vlm.utils
from mlx_lm.models.cache import make_prompt_cache as mlx_lms_caches
from mlx_vlm.models.cache import make_prompt_cache as mlx_vlms_caches

from protocol.architectures import is_mlx_lms
from protocol.model_folder import end_token_ids
from tests.support import shapes
from tests.support.architectures import TINY
from tests.support.vlm_architectures import TINY_VLM
from tests.support.vlm_folders import write_vlm
from worker.engines import sequence
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, measure
from worker.engines.sequential import SequentialEngine
from worker.load.loading import load, read_tokenizer
from worker.mlx_lm.batching_trial import try_batching
from worker.mlx_vlm import forget_positions
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.path import Paths, root_key
from worker.system.errors import ModelError, one_sentence
from worker.vision.language import load_language
from worker.vision.trial import why_alone

LIBRARIES: Final = {"mlx-lm": TINY, "mlx-vlm": TINY_VLM}
CASES: Final = ("loads", "same", "batch", "cached", "resumed", "guesses", "pictures")
YES: Final = "yes"
_TOKENS: Final = 16
_CUT: Final = 5
# Longer than windows, and than two blocks of the prompt cache.
_PROMPTS: Final = ("Bulkhead", "Once there was a ship with seven holds. " * 12)
# Logits differ by rounding if the difference is so small a share of the largest.
_ROUNDING: Final = 1e-3
_PATHS: Final = re.compile(r"/\S+/")

_names = count()


class Answer(NamedTuple):
    """The tokens of an answer. `cached` tokens of its prompt came from the prompt cache, and
    `guessed` of its tokens were guessed rightly.
    """

    tokens: list[int]
    cached: int
    guessed: int


@dataclass(frozen=True)
class _Reference:
    """The library's own likeliest tokens of a prompt, and the logits that each was chosen by."""

    prompt: list[int]
    tokens: list[int]
    logits: list[mx.array]

    def verdict(self, others: list[int]) -> str:
        """Whether an answer has the same tokens, or others whose logits are as large."""
        for place, (token, other) in enumerate(zip(self.tokens, others, strict=True)):
            if token != other:
                row = self.logits[place]
                gap = float((row[token] - row[other]) / mx.abs(row).max())
                if gap < _ROUNDING:
                    return f"{YES}, but for rounding"
                return f"another token at place {place + 1}, {gap:.0%} less likely"
        return YES


def try_architecture(library: str, name: str) -> dict[str, str]:
    """ "yes" or the reason against it for each of CASES. Cases behind a load that fails are left
    out.
    """
    with tempfile.TemporaryDirectory(prefix="bh-") as place:
        folder = Path(place) / "model"
        config = {**LIBRARIES[library][name], "model_type": name}
        try:
            (shapes.write if library == "mlx-lm" else write_vlm)(folder, config)
            loaded = _Loaded(library, name, folder)
        except Exception as error:
            return {"loads": _reason(error)}
        try:
            references = [loaded.reference(prompt) for prompt in _PROMPTS]
        except Exception as error:
            return {"loads": YES, "same": f"{library} itself: {_reason(error)}"}
        tried = {
            case: _tried(trial, loaded, references)
            for case, trial in (
                ("same", _same),
                ("batch", _batch),
                ("cached", _cached),
                ("resumed", _resumed),
                ("guesses", _guesses),
            )
        }
        found = {"loads": YES, **tried}
        return found if library == "mlx-lm" else {**found, "pictures": loaded.pictures}


class _Loaded:
    """A model as the library loads it and as this server does."""

    def __init__(self, library: str, name: str, folder: Path) -> None:
        self._by_vlm = library == "mlx-vlm"
        if self._by_vlm and is_mlx_lms(name):
            # This server would have mlx-lm load it.
            self.model, self._config = load_language(folder)
            self._tokenizer = read_tokenizer(folder)
        else:
            whole = load(str(folder), lambda _done, _total: None, lambda: False)
            self.model, self._config, self._tokenizer = whole.model, whole.config, whole.tokenizer
        self.ends = tuple(end_token_ids(folder) or ())
        read = mlx_vlm.utils.load_model if self._by_vlm else mlx_lm.utils.load_model
        own: Any = read(folder, lazy=True)
        self._own = own if self._by_vlm else own[0]
        self.caches = Caches(self.model, None)
        self.alone = self._why_alone()

    def _why_alone(self) -> str | None:
        model = self.caches.model
        return why_alone(model, looks=False) if self._by_vlm else try_batching(model).fault

    @property
    def pictures(self) -> str:
        if not self._config.get("vision_config"):
            return "its architecture has no part that looks at pictures"
        if not hasattr(self._own, "get_input_embeddings"):
            return "it makes no embeddings of pictures"
        return YES

    def reference(self, text: str) -> _Reference:
        prompt = self._tokenizer.encode(text)
        model = self._own
        if self._by_vlm:
            model = getattr(model, "language_model", model)
            forget_positions(model)
        caches = (mlx_vlms_caches if self._by_vlm else mlx_lms_caches)(model)
        given, tokens, logits = prompt, [], []
        for _ in range(_TOKENS):
            output = model(mx.array([given]), cache=caches)
            row = getattr(output, "logits", output)[0, -1].astype(mx.float32)
            if mx.isnan(row).any():
                raise ArithmeticError("its logits are no numbers")
            if row.max() == row.min():
                raise ArithmeticError("with random weights all tokens are as likely")
            logits.append(row)
            given = [int(mx.argmax(row))]
            tokens += given
        return _Reference(prompt, tokens, logits)


class _Runner:
    """The engine that workers would use for the model."""

    def __init__(self, loaded: _Loaded, *, cached: bool = False, guesses: bool = False) -> None:
        caches = loaded.caches
        room = CacheRoom(measure(caches.run, caches.make))
        cutter = Cutter(caches.run, caches.make)
        self._paths = Paths(root_key("bench"), None, needs_snapshots=cutter.needs_snapshots)
        store = PromptCache(cutter, None) if cached and cutter.can_restore else None
        self.keeps = store is not None
        self._engine: sequence.Engine
        if loaded.alone:
            self._engine = SequentialEngine(loaded.model, loaded.ends, room, caches, store)
        else:
            batched = BatchedEngine(caches.model, loaded.ends, 4, room, store, guesses=guesses)
            # As on a machine where a wide step costs hardly more.
            batched.step_costs.ratio = lambda *_: 1.0  # type: ignore[method-assign]
            self._engine = batched

    def run(
        self, prompts: Sequence[list[int]], tokens: int, prediction: tuple[int, ...] = ()
    ) -> list[Answer]:
        """The likeliest answers to prompts that come at once."""
        got: dict[str, list[sequence.Token]] = {}
        for prompt in prompts:
            name = f"{next(_names)}"
            got[name] = []
            path = self._paths.find(prompt, "") if self.keeps else None
            self._engine.add(
                sequence.Sequence(
                    name, prompt, tokens, None, True, path=path, prediction=prediction
                )
            )
        while any(len(given) < tokens for given in got.values()):
            for token in self._engine.step():
                got[token.request_id].append(token)
            self._engine.store_blocks()
            lost = any(not spoilt.goes_on for spoilt in self._engine.collect_spoilt())
            if lost or self._engine.remove_broken():
                raise ArithmeticError("the engine gives the sequence up")
        return [
            Answer(
                [token.token_id for token in given],
                max(token.cached_tokens for token in given),
                sum(token.guessed for token in given),
            )
            for given in got.values()
        ]


def _tried(
    trial: Callable[[_Loaded, list[_Reference]], str],
    loaded: _Loaded,
    references: list[_Reference],
) -> str:
    try:
        return trial(loaded, references)
    except Exception as error:
        # Each architecture fails in its own way.
        return _reason(error)


def _reason(error: Exception) -> str:
    text = error.reason if isinstance(error, ModelError) else one_sentence(error)
    return _PATHS.sub("", text)[:200]


def _worst(verdicts: Sequence[str]) -> str:
    return max(verdicts, key=lambda verdict: (not verdict.startswith(YES), len(verdict)))


def _same(loaded: _Loaded, references: list[_Reference]) -> str:
    runner = _Runner(loaded)
    answers = [runner.run([reference.prompt], _TOKENS)[0] for reference in references]
    return _verdict(references, answers)


def _batch(loaded: _Loaded, references: list[_Reference]) -> str:
    if loaded.alone:
        return loaded.alone
    answers = _Runner(loaded).run([reference.prompt for reference in references], _TOKENS)
    return _verdict(references, answers)


def _cached(loaded: _Loaded, references: list[_Reference]) -> str:
    runner = _Runner(loaded, cached=True)
    if not runner.keeps:
        return "its caches can't be cut into blocks"
    long = references[-1]
    runner.run([long.prompt], _TOKENS)
    again = runner.run([long.prompt], _TOKENS)
    return _verdict([long], again) if again[0].cached else "nothing was found"


def _resumed(loaded: _Loaded, references: list[_Reference]) -> str:
    runner = _Runner(loaded)
    begun = [runner.run([reference.prompt], _CUT)[0] for reference in references]
    ended = [
        runner.run([reference.prompt + first.tokens], _TOKENS - _CUT)[0]
        for reference, first in zip(references, begun, strict=True)
    ]
    whole = [
        Answer(first.tokens + last.tokens, 0, 0) for first, last in zip(begun, ended, strict=True)
    ]
    return _verdict(references, whole)


def _guesses(loaded: _Loaded, references: list[_Reference]) -> str:
    if loaded.alone:
        return "it is computed one at a time"
    runner = _Runner(loaded, guesses=True)
    answers = []
    for reference in references:
        # The eighth is wrong.
        predicted = (*reference.tokens[:7], (reference.tokens[7] + 1) % 256, *reference.tokens[8:])
        answers += runner.run([reference.prompt], _TOKENS, predicted)
    if not any(answer.guessed for answer in answers):
        return "no guess was checked, as its caches can't forget wrong ones"
    return _verdict(references, answers)


def _verdict(references: Sequence[_Reference], answers: Sequence[Answer]) -> str:
    pairs = zip(references, answers, strict=True)
    return _worst([reference.verdict(answer.tokens) for reference, answer in pairs])
