"""`python -m bench.sampling`: what it costs that 32 rows are sampled, each in its own way.

First the sampler alone, at three sizes of vocabulary; also with penalties, biases and banned words
for each row, and with log probabilities. Then whole steps of the worker's engine with
three models: two engines, one greedy and one sampled, take turns of a few steps, so that the
machine's moods hit both.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx_lm.generate import generation_stream
from mlx_lm.sample_utils import make_sampler

from bench import arguments
from bench.machine import describe_machine
from bench.settings import GREEDY, SamplingSettings, sampled, settings_of
from bench.tiny import build_tiny_model
from gateway.config.model_folders import DEMO_FOLDER
from tests.support.shapes import wide_cache
from worker.engines.batched import BatchedEngine
from worker.engines.room import CacheRoom, CacheSizes
from worker.engines.sequence import Sequence as Row
from worker.load.loading import LoadedModel, load
from worker.sampling.adjustments import Adjustments
from worker.sampling.batch import BatchSampler
from worker.sampling.settings import RowSampling

_ROWS: Final = 32
_VOCABULARIES: Final = (512, 32_000, 151_936)
_TARGET: Final = 0.95
_PROMPT: Final = range(10, 30)
# A token's probability falls with this power of its rank: 12 tokens have 95 % of it.
_STEEPNESS: Final = 2.0
_CALLS: Final = 3
_TURN_STEPS: Final = 5
_ADJUSTMENTS: Final = Adjustments(
    0,
    repetition_penalty=1.1,
    repetition_tokens=20,
    frequency_penalty=0.5,
    presence_penalty=0.5,
    logit_bias=((5, 1.0),),
    banned=((6,), (7, 8)),
)

_DIFFERENT: Final = list(settings_of(sampled([""] * _ROWS)))
_CASES: Final[dict[str, list[SamplingSettings]]] = {
    "greedy": [GREEDY] * _ROWS,
    "temperature": [SamplingSettings(0.8)] * _ROWS,
    "min_p": [SamplingSettings(0.8, min_p=0.05)] * _ROWS,
    "top_k": [SamplingSettings(0.8, top_k=40)] * _ROWS,
    "top_p": [SamplingSettings(0.8, top_p=0.95)] * _ROWS,
    "32 settings": _DIFFERENT,
    "half of them greedy": [GREEDY if i % 2 else each for i, each in enumerate(_DIFFERENT)],
}


def main() -> int:
    parser = arguments.parser(
        "bench.sampling", __doc__, rounds=30, model=None, shown="a tiny, the demo and a wide one"
    )
    parsed = parser.parse_args()
    machine = describe_machine()
    print(f"{machine.processor}, {machine.cores} cores, {machine.mlx}; {_ROWS} rows\n")
    _print_calls()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if parsed.model is None:
            build_tiny_model(DEMO_FOLDER, folder / "tiny")
            models = [folder / "tiny", DEMO_FOLDER, wide_cache(folder / "wide")]
        else:
            models = [parsed.model]
        print(f"\nMedians of {parsed.rounds} turns of {_TURN_STEPS} steps.\n")
        print("| ms a step | greedy | 32 settings | ratio | CPU: greedy | 32 settings | ratio |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for model in models:
            figures = [
                f"{greedy_ms:.2f} | {sampled_ms:.2f} | {greedy_ms / sampled_ms:.3f}"
                for greedy_ms, sampled_ms in _steps_ms(model, parsed.rounds)
            ]
            print(f"| {model.name} | {' | '.join(figures)} |", flush=True)
    print(f"\nTarget: at least {_TARGET}.")
    return 0


def _print_calls() -> None:
    titles = [*_CASES, "all adjusted", "log probabilities", "a sampler a row"]
    print(f"| ms a call | {' | '.join(titles)} |")
    print(f"| --- |{' ---: |' * len(titles)}")
    for vocabulary in _VOCABULARIES:
        keys = mx.random.split(mx.random.key(1), _ROWS)
        ranks = mx.stack([mx.random.permutation(vocabulary, key=key) for key in keys]) + 1
        logits = -_STEEPNESS * mx.log(ranks)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        samplers = [
            *(_sampler(each) for each in _CASES.values()),
            _sampler(_DIFFERENT, adjustments=_ADJUSTMENTS),
            _scoring(),
            _one_by_one,
        ]
        times = [_call_ms(each, logprobs) for each in samplers]
        print(f"| {vocabulary} | {' | '.join(f'{each:.2f}' for each in times)} |", flush=True)


def _call_ms(sampler: Callable[[mx.array], mx.array], logprobs: mx.array) -> float:
    times_s = []
    for _ in range(_CALLS + 1):
        began = time.perf_counter()
        mx.eval(sampler(logprobs))
        times_s.append(time.perf_counter() - began)
    return statistics.median(times_s[1:]) * 1e3


def _sampler(
    settings: Sequence[SamplingSettings],
    adjustments: Adjustments | None = None,
    logprobs: int | None = None,
) -> BatchSampler[int]:
    sampler = BatchSampler[int](lambda: range(len(settings)))
    for index, each in enumerate(settings):
        sampler.add(index, _row_sampling(index, each), adjustments, _PROMPT, logprobs)
    return sampler


def _scoring() -> Callable[[mx.array], mx.array]:
    """Twenty alternatives to each token of rows that are greedy otherwise, as they are read."""
    sampler = _sampler([GREEDY] * _ROWS, logprobs=20)

    def sample(logprobs: mx.array) -> mx.array:
        token_ids = sampler(logprobs)
        for index in range(_ROWS):
            sampler.take_score(index)
        return token_ids

    return sample


def _one_by_one(logprobs: mx.array) -> mx.array:
    """As mlx-lm samples rows of different settings."""
    samplers = [
        make_sampler(each.temperature, each.top_p, each.min_p, top_k=each.top_k)
        for each in _DIFFERENT
    ]
    return mx.concatenate([each(logprobs[i : i + 1]) for i, each in enumerate(samplers)])


def _row_sampling(seed: int, settings: SamplingSettings) -> RowSampling | None:
    if settings == GREEDY:
        return None
    return RowSampling(seed, settings.temperature, settings.top_p, settings.top_k, settings.min_p)


def _steps_ms(folder: Path, turns: int) -> list[list[float]]:
    """Median steps of 32 rows that decode, greedy and sampled: their time, and that of the
    processor, which others on the machine disturb less.
    """
    model = load(str(folder), lambda _done, _total: None, lambda: False)
    engines = [
        _decoding(model, each, turns * _TURN_STEPS) for each in ([GREEDY] * _ROWS, _DIFFERENT)
    ]
    clocks = (time.perf_counter, time.process_time)
    times_s: list[list[list[float]]] = [[[], []] for _ in clocks]
    for number in range(turns):
        # Who comes first finds the processor's caches in another state.
        for index in (0, 1) if number % 2 else (1, 0):
            began = [clock() for clock in clocks]
            for _ in range(_TURN_STEPS):
                engines[index].step()
            # The step that it computes ahead would be the other's time.
            mx.synchronize(generation_stream)
            for clock, times, before in zip(clocks, times_s, began, strict=True):
                times[index].append((clock() - before) / _TURN_STEPS)
    for engine in engines:
        engine.close()
    return [[statistics.median(each) * 1e3 for each in times] for times in times_s]


def _decoding(model: LoadedModel, settings: Sequence[SamplingSettings], steps: int) -> Any:
    engine = BatchedEngine(
        model.model, model.eos_token_ids, _ROWS, CacheRoom(CacheSizes(0, 0, 1.0))
    )
    for index, each in enumerate(settings):
        # The last to begin still runs when the first that did has made some more.
        tokens = steps + 4 * _ROWS
        engine.add(Row(str(index), list(_PROMPT), tokens, _row_sampling(index, each), True))
    while len(engine.step()) < _ROWS:
        pass
    return engine


if __name__ == "__main__":
    sys.exit(main())
