"""`python -m bench.structure`: the cost of constrained answers for the other rows of a batch.

Steps of the worker's engine with 16 rows: all of them free, and some constrained by a schema.
Engines take turns of a few steps, so that the machine's moods hit all. A step gives each free row
a token, so that the ratio of steps is that of the neighbours' rates. Then the first constraint of a
model, and the longest step while hostile constraints arrive.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import psutil
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.engines import TURN_STEPS, decoding, steps_ms
from bench.machine import describe_machine
from bench.models import TINY, build_model, built_model, model_parser
from gateway.config.model_folders import DEMO_FOLDER
from protocol.requests import Constraint, Generate, Sampling, TextPrompt
from tests.worker.structure.hostile import HOSTILE
from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import Context
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare

_ROWS: Final = 16
_CONSTRAINED: Final = (0, 1, 8, 16)
_TARGET: Final = 0.9
_WATCHED_STEPS: Final = 50
_VOCABULARY: Final = 151_936
_PATHS: Final = Paths(b"", None, needs_snapshots=False)
# Long enough for every round.
_RECORDS: Final = Constraint(
    "json_schema",
    json.dumps(
        {
            "type": "array",
            "minItems": 5000,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 5, "maxLength": 20},
                    "age": {"type": "integer", "minimum": 0, "maximum": 120},
                    "kind": {"enum": ["freighter", "tanker", "ferry"]},
                },
                "required": ["name", "age", "kind"],
                "additionalProperties": False,
            },
        }
    ),
)


def main() -> int:
    parser = model_parser(
        "bench.structure",
        __doc__,
        rounds=30,
        model=None,
        shown="the demo, and one of 151,936",
        for_gpu=True,
    )
    parsed = parser.parse_args()
    print(f"{describe_machine()}; {_ROWS} rows\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folders = [parsed.model] if parsed.model else [DEMO_FOLDER, _large(folder, parsed)]
        loaded = [
            load(str(folder), lambda _done, _total: None, lambda: False) for folder in folders
        ]
        for model, path in zip(loaded, folders, strict=True):
            _print_first(path.name, model)
        print(f"\nMedians of {parsed.rounds} turns of {TURN_STEPS} steps.\n")
        print("| ms a step | none | " + " | ".join(f"{n} | ratio" for n in _CONSTRAINED[1:]) + " |")
        print("| --- |" + " ---: |" * (2 * len(_CONSTRAINED) - 1))
        for model, path in zip(loaded, folders, strict=True):
            engines = [_engine(model, number) for number in _CONSTRAINED]
            times_ms = steps_ms(engines, parsed.rounds)
            for clock, figures in zip(("", ", CPU"), times_ms, strict=True):
                free_ms, *rest_ms = figures
                cells = [f"{free_ms:.2f}", *(f"{ms:.2f} | {free_ms / ms:.3f}" for ms in rest_ms)]
                print(f"| {path.name}{clock} | {' | '.join(cells)} |", flush=True)
        print(f"\nTarget: at least {_TARGET}.\n")
        for model, path in zip(loaded, folders, strict=True):
            _print_hostile(path.name, model)
    return 0


def _print_first(name: str, model: LoadedModel) -> None:
    """The first constraint makes the trie, which holds the interpreter's lock: no step begins."""
    process = psutil.Process()
    before_bytes, began = process.memory_info().rss, time.perf_counter()
    _prepared(model, "first", _RECORDS, 0)
    first_s = time.perf_counter() - began
    grown_mb = (process.memory_info().rss - before_bytes) / 1e6
    began = time.perf_counter()
    _prepared(model, "second", Constraint("regex", "[a-z]+"), 0)
    print(
        f"{name}: the first constraint takes {first_s:.2f} s and {grown_mb:.0f} MB, "
        f"another one {time.perf_counter() - began:.2f} s"
    )


def _prepared(model: LoadedModel, name: str, constraint: Constraint | None, seed: int) -> Any:
    generate = Generate(
        request_id=name,
        prompt=TextPrompt("A list of ships: "),
        sampling=Sampling(seed=seed, temperature=1.0),
        constraint=constraint,
        ignore_eos=True,
    )
    return prepare(generate, model, Context(4000), _PATHS)


def _engine(model: LoadedModel, constrained: int) -> BatchedEngine:
    """An engine of rows, the first of which are constrained."""
    return decoding(
        model,
        [
            _prepared(model, str(index), _RECORDS if index < constrained else None, index).sequence
            for index in range(_ROWS)
        ],
    )


def _print_hostile(name: str, model: LoadedModel) -> None:
    engine = _engine(model, 0)
    took_s: dict[str, float] = {}
    ready: list[Any] = []

    def arrive() -> None:
        for name, constraint in HOSTILE.items():
            began = time.perf_counter()
            prepared = _prepared(model, name, constraint, 0)
            took_s[name] = time.perf_counter() - began
            if isinstance(prepared, PreparedRequest):
                ready.append(prepared.sequence)

    quiet: list[float] = []
    quiet_s = _longest_step_s(engine, lambda: len(quiet) < _WATCHED_STEPS, quiet)
    thread = threading.Thread(target=arrive)
    thread.start()
    arriving_s = _longest_step_s(engine, thread.is_alive, [])
    for sequence in ready:
        engine.remove({next(iter(engine._batches[0].rows)).sequence.request_id})
        engine.add(sequence)
    run: list[float] = []
    running_s = _longest_step_s(engine, lambda: len(run) < _WATCHED_STEPS, run)
    slowest = max(took_s, key=lambda item: took_s[item])
    print(
        f"{name}: {len(HOSTILE)} hostile constraints, {len(ready)} of them not refused, the "
        f"slowest after {took_s[slowest]:.2f} s ({slowest}). The longest of {_WATCHED_STEPS} "
        f"steps before: {quiet_s * 1e3:.0f} ms; while they arrive: {arriving_s * 1e3:.0f} ms; "
        f"while those that weren't refused run: {running_s * 1e3:.0f} ms"
    )
    engine.close()


def _longest_step_s(engine: BatchedEngine, going_on: Any, steps: list[float]) -> float:
    while going_on():
        began = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - began)
        engine.remove_broken()
    return max(steps)


def _large(folder: Path, parsed: Any) -> Path:
    """A model of as many tokens as Qwen's. They are random syllables."""
    source = folder / "source"
    build_model(source, TINY)
    chance = random.Random(1)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = dict.fromkeys(letters)
    while len(words) < _VOCABULARY - 300:
        syllables = (
            chance.choice("etaoinsrhldcumfpgwybvkxjqz") for _ in range(chance.randint(2, 8))
        )
        words[chance.choice("Ġ ")[:1].strip() + "".join(syllables)] = None
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(source / "tokenizer.json"))
    config = json.loads((source / "config.json").read_text("utf-8"))
    config |= {"vocab_size": _VOCABULARY, "eos_token_id": tokenizer.token_to_id("<|im_end|>")}
    (source / "config.json").write_text(json.dumps(config), "utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return built_model(parsed, folder / "large", TINY, source)


if __name__ == "__main__":
    sys.exit(main())
