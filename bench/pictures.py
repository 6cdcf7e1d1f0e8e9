"""`python -m bench.pictures`: models that look at pictures, of random weights and two families.

Eight streams of text, against the same language model without pictures; and the first token of a
second turn about a picture, against that of the first turn. Engines take turns in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from bench.conversation import RandomText
from bench.machine import describe_machine
from gateway.config.model_folders import DEMO_FOLDER
from protocol.requests import ChatMessage, ChatPrompt, Generate, Picture, Sampling
from tests.support.picture_model import picture_model
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, Context, measure
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare

_STREAMS: Final = 8
_TOKENS: Final = 48
_RATE_TARGET: Final = 0.9
_TURN_TARGET: Final = 0.3
_CONTEXT: Final = Context(4096)
_SIDE: Final = 448
_QWEN: Final[dict[str, Any]] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
    "vision_config": {"depth": 2, "embed_dim": 64, "hidden_size": 128},
}
_GEMMA: Final[dict[str, Any]] = {
    "hidden_size": 128,
    "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "intermediate_size": 384,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 512,
        "sliding_window_pattern": 4,
        "mm_tokens_per_image": 256,
    },
    "vision_config": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 256,
        "image_size": _SIDE,
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pictures", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parsed = parser.parse_args()
    print(f"{describe_machine()}\n")
    print(f"Medians of {parsed.rounds} rounds, {_STREAMS} streams, a picture of 256 tokens.\n")
    print(
        "| family | text, tokens/s | the text model | ratio (target) | first turn (s) "
        "| second turn | ratio (target) |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(prefix="bh-") as folder:
        for kind, make in (("qwen2_vl", _qwen2_vl), ("gemma3", _gemma3)):
            looking, plain = make(Path(folder))
            _print_family(kind, looking, plain, parsed.rounds)
    return 0


def _print_family(kind: str, looking: LoadedModel, plain: LoadedModel, rounds: int) -> None:
    rates, turns = [], []
    subjects = [_Subject(looking), _Subject(plain)]
    for subject in subjects:
        subject.rate(seed=0)
    for number in range(rounds):
        rates.append([subject.rate(seed=number) for subject in subjects])
        turns.append(subjects[0].turns(seed=number))
    text, alone, first_s, second_s = (
        statistics.median(pair) for pairs in (rates, turns) for pair in zip(*pairs, strict=True)
    )
    ratio, turn = (statistics.median(a / b for a, b in pairs) for pairs in (rates, turns))
    print(
        f"| {kind} | {text:.0f} | {alone:.0f} | {ratio:.2f} ({_RATE_TARGET}) | {first_s:.2f} "
        f"| {second_s:.2f} | {1 / turn:.2f} ({_TURN_TARGET}) |",
        flush=True,
    )


class _Subject:
    """A model, its prompt cache and its engine."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        caches = Caches(model.model)
        cutter = Cutter(caches.run, caches.make)
        self._paths = Paths(b"", None, needs_snapshots=cutter.needs_snapshots)
        self._engine = BatchedEngine(
            model.model,
            (),
            _STREAMS,
            CacheRoom(measure(caches.run, caches.make)),
            PromptCache(cutter, None),
            guesses=False,
            vision=None if model.picture_processor is None else model.model,
        )

    def rate(self, seed: int) -> float:
        """Tokens a second of all streams."""
        words = RandomText(DEMO_FOLDER, seed)
        for index in range(_STREAMS):
            self._add(f"{index}", ChatMessage("user", words.draw(30)), tokens=_TOKENS)
        began_at = time.perf_counter()
        self._run(lambda: False)
        return _STREAMS * _TOKENS / (time.perf_counter() - began_at)

    def turns(self, seed: int) -> tuple[float, float]:
        """The seconds to the first token of two turns about a picture."""
        words = RandomText(DEMO_FOLDER, seed)
        said = words.draw(40)
        picture = Picture(_noise(seed), len(said), "picture")
        messages = [ChatMessage("user", said, pictures=(picture,))]
        found = []
        for _ in range(2):
            began_at = time.perf_counter()
            self._add("turn", *messages, tokens=12)
            ticks: list[float] = []
            self._run(lambda ticks=ticks: ticks.append(time.perf_counter()) or False)
            found.append(ticks[0] - began_at)
            messages += [
                ChatMessage("assistant", words.draw(12)),
                ChatMessage("user", words.draw(20)),
            ]
        return found[0], found[1]

    def _add(self, name: str, *messages: ChatMessage, tokens: int) -> None:
        asked = Generate(
            request_id=name,
            prompt=ChatPrompt(messages),
            sampling=Sampling(seed=1, temperature=0.0),
            max_tokens=tokens,
            ignore_eos=True,
        )
        prepared = prepare(asked, self._model, _CONTEXT, self._paths)
        assert isinstance(prepared, PreparedRequest)
        self._engine.add(prepared.sequence)

    def _run(self, on_token: Callable[[], Any]) -> None:
        while self._engine.active + self._engine.waiting:
            if self._engine.step():
                on_token()
            self._engine.store_blocks()


def _qwen2_vl(folder: Path) -> tuple[LoadedModel, LoadedModel]:
    most = {"min_pixels": _SIDE**2, "max_pixels": _SIDE**2}
    looking = picture_model(folder / "qwen2_vl", "qwen2_vl", processor=most, **_QWEN)
    config = json.loads((looking / "config.json").read_text())
    config = {name: item for name, item in config.items() if name not in _OF_PICTURES}
    return _pair(looking, {**config, "model_type": "qwen2"}, "visual.", "")


def _gemma3(folder: Path) -> tuple[LoadedModel, LoadedModel]:
    size = {"size": {"height": _SIDE, "width": _SIDE}, "image_seq_length": 256}
    looking = picture_model(folder / "gemma3", "gemma3", processor=size, **_GEMMA)
    config = json.loads((looking / "config.json").read_text())
    return _pair(looking, config["text_config"], "vision_tower.", "language_model.")


_OF_PICTURES: Final = ("vision_config", "rope_scaling", "architectures")


def _pair(
    looking: Path, text_config: dict[str, Any], of_pictures: str, prefix: str
) -> tuple[LoadedModel, LoadedModel]:
    """The model, and its language model alone, as mlx-lm's model of this configuration."""
    plain = looking.with_name(f"{looking.name}-text")
    plain.mkdir()
    weights = mx.load(str(looking / "model.safetensors"))
    assert isinstance(weights, dict)
    kept = {
        name.removeprefix(prefix): weight
        for name, weight in weights.items()
        if not name.startswith((of_pictures, "multi_modal_projector."))
    }
    mx.save_safetensors(str(plain / "model.safetensors"), kept, {"format": "mlx"})
    (plain / "config.json").write_text(json.dumps(text_config))
    for path in looking.iterdir():
        if path.name.startswith(("tokenizer", "generation")):
            os.link(path, plain / path.name)
    return _load(looking, pictures=True), _load(plain, pictures=False)


def _load(folder: Path, *, pictures: bool) -> LoadedModel:
    return load(str(folder), lambda _done, _total: None, lambda: False, pictures=pictures)


def _noise(seed: int) -> bytes:
    """A picture that no other seed has, as a PNG file."""
    chance = random.Random(seed)
    rows = b"".join(b"\0" + chance.randbytes(3 * _SIDE) for _ in range(_SIDE))
    header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


if __name__ == "__main__":
    sys.exit(main())
