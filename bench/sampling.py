"""`python -m bench.sampling`: the cost of 32 rows that are sampled, each in its own way.

First the sampler alone, at three sizes of vocabulary; also with penalties, biases and banned words
for each row, and with log probabilities. Then whole steps of the worker's engine with three models:
two engines, one greedy and one sampled, take turns of a few steps, so that the machine's moods hit
both.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import mlx.core as mx
from mlx_lm.sample_utils import make_sampler

from bench.engines import TURN_STEPS, decoding, steps_ms
from bench.machine import describe_machine
from bench.models import TINY, build_model, model_parser
from bench.prompts import GREEDY, SamplingSettings, sampled, settings_of
from gateway.config.model_folders import DEMO_FOLDER
from tests.support.shapes import wide_cache
from worker.engines.sequence import Sequence as Row
from worker.load.loading import load
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
    "half of them greedy": [GREEDY if i % 2 else sampling for i, sampling in enumerate(_DIFFERENT)],
}


def main() -> int:
    parser = model_parser(
        "bench.sampling", __doc__, rounds=30, model=None, shown="a tiny, the demo and a wide one"
    )
    parsed = parser.parse_args()
    print(f"{describe_machine()}; {_ROWS} rows\n")
    _print_calls()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if parsed.model is None:
            build_model(folder / "tiny", TINY)
            models = [folder / "tiny", DEMO_FOLDER, wide_cache(folder / "wide")]
        else:
            models = [parsed.model]
        print(f"\nMedians of {parsed.rounds} turns of {TURN_STEPS} steps.\n")
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
            *(_sampler(case) for case in _CASES.values()),
            _sampler(_DIFFERENT, adjustments=_ADJUSTMENTS),
            _scoring(),
            _one_by_one,
        ]
        times = [_call_ms(sampler, logprobs) for sampler in samplers]
        print(f"| {vocabulary} | {' | '.join(f'{moment:.2f}' for moment in times)} |", flush=True)


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
    for index, setting in enumerate(settings):
        sampler.add(index, _row_sampling(index, setting), adjustments, _PROMPT, logprobs)
    return sampler


def _scoring() -> Callable[[mx.array], mx.array]:
    """Greedy rows with twenty alternatives to each token, which are read."""
    sampler = _sampler([GREEDY] * _ROWS, logprobs=20)

    def sample(logprobs: mx.array) -> mx.array:
        token_ids = sampler(logprobs)
        for index in range(_ROWS):
            sampler.next_score(index)
        return token_ids

    return sample


def _one_by_one(logprobs: mx.array) -> mx.array:
    """mlx-lm's sampling of rows of different settings."""
    samplers = [
        make_sampler(sampling.temperature, sampling.top_p, sampling.min_p, top_k=sampling.top_k)
        for sampling in _DIFFERENT
    ]
    return mx.concatenate([sampler(logprobs[i : i + 1]) for i, sampler in enumerate(samplers)])


def _row_sampling(seed: int, settings: SamplingSettings) -> RowSampling | None:
    if settings == GREEDY:
        return None
    return RowSampling(seed, settings.temperature, settings.top_p, settings.top_k, settings.min_p)


def _steps_ms(folder: Path, turns: int) -> list[list[float]]:
    """Median steps of 32 rows, greedy and sampled."""
    model = load(str(folder), lambda _done, _total: None, lambda: False)
    # The row that began last still runs when the first one has made some more tokens.
    tokens = turns * TURN_STEPS + 4 * _ROWS
    engines = [
        decoding(
            model,
            [
                Row(str(index), list(_PROMPT), tokens, _row_sampling(index, setting), True)
                for index, setting in enumerate(settings)
            ],
        )
        for settings in ([GREEDY] * _ROWS, _DIFFERENT)
    ]
    return steps_ms(engines, turns)


if __name__ == "__main__":
    sys.exit(main())
