"""Quantized caches, adapters and draft models: what they change, and who can't have them."""

from __future__ import annotations

import functools
import json
import queue
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path as Folder

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.qwen3 import Model
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model

from protocol.life import Load, LoadFailed, LoadProgress
from protocol.message_base import pack
from protocol.requests import Generate, Sampling, SamplingDefaults, TokenPrompt
from tests.support import shapes
from tests.support.stepping import step
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, CacheSizes, measure
from worker.engines.row_computer import make_draft
from worker.engines.sequence import Engine, Sequence, Token
from worker.load.files import fingerprint
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.path import Paths
from worker.runtime.engine_thread import EngineEnd, EngineStep, EngineThread, ModelReady
from worker.runtime.prompts import PreparedRequest
from worker.runtime.serve import prompt_root, serve
from worker.runtime.warm import WarmUp
from worker.sampling.adjustments import make_adjustments
from worker.sampling.settings import make_row_sampling
from worker.system.errors import ModelError

UNBOUNDED = CacheRoom(CacheSizes(0, 0, 1.0))
PROMPT = [5 + 7 * index % 600 for index in range(140)]
GREEDY = Sampling(seed=1, temperature=0.0)
SEEDED = Sampling(seed=7, temperature=1.1, top_p=0.95)
PENALIZED = Sampling(seed=1, temperature=0.0, repetition_penalty=1.4)
LORA = {"rank": 4, "scale": 20.0, "dropout": 0.5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Folder]:
    root = tmp_path_factory.mktemp("models")

    @functools.cache
    def get(shape: str) -> Folder:
        made: Folder = getattr(shapes, shape)(root / shape)
        return made

    return get


def _load(
    folder: Folder, adapter: Folder | None = None, draft: Folder | None = None
) -> LoadedModel:
    return load(
        str(folder),
        lambda _done, _total: None,
        lambda: False,
        None if adapter is None else str(adapter),
        None if draft is None else str(draft),
    )


def _sequence(model: LoadedModel, sampling: Sampling, paths: Paths | None = None) -> Sequence:
    return Sequence(
        "r",
        PROMPT,
        24,
        make_row_sampling(sampling, SamplingDefaults(), model.vocabulary),
        ignore_eos=True,
        adjustments=make_adjustments(sampling, len(PROMPT), 4096, ()),
        path=None if paths is None else paths.find(PROMPT, ""),
    )


def _run(engine: Engine, sequence: Sequence) -> list[Token]:
    engine.add(sequence)
    tokens = []
    while engine.active + engine.waiting:
        tokens += step(engine)
    return tokens


def _ids(tokens: list[Token]) -> list[int]:
    return [token.token_id for token in tokens]


def _plain(model: LoadedModel, sampling: Sampling) -> list[int]:
    engine = BatchedEngine(model.model, (), 8, UNBOUNDED)
    return _ids(_run(engine, _sequence(model, sampling)))


class TestQuantized:
    @pytest.mark.parametrize(("bits", "token_bytes"), [(8, 64 + 8), (4, 32 + 8)])
    def test_takes_less(
        self, folders: Callable[[str], Folder], bits: int, token_bytes: int
    ) -> None:
        """For 64 numbers: their bits, and a scale and a bias of 4 bytes each."""
        model = _load(folders("full_attention"))
        caches = Caches(model.model, kv_bits=bits)
        assert caches.can_be_merged
        # Keys and values of two heads in two layers.
        assert measure(caches.run, caches.make)[:2] == (8 * token_bytes, 0)
        engine = BatchedEngine(caches.model, (), 8, UNBOUNDED)
        made = _ids(_run(engine, _sequence(model, GREEDY)))
        if bits == 8:
            assert made[0] == _plain(model, GREEDY)[0]

    @pytest.mark.parametrize(
        ("shape", "reason"),
        [
            ("sliding_window", "a sliding window (RotatingKVCache)"),
            ("state_space", "a recurrent state (ArraysCache)"),
            ("hybrid", "a recurrent state (ArraysCache)"),
            ("chunked_attention", "chunked attention (ChunkedKVCache)"),
            ("narrow", "quantize"),
        ],
    )
    def test_unfit_models(self, shape: str, reason: str, folders: Callable[[str], Folder]) -> None:
        model = _load(shapes.DEMO if shape == "narrow" else folders(shape))
        with pytest.raises(ModelError) as caught:
            Caches(model.model, kv_bits=8)
        assert reason in caught.value.reason
        assert caught.value.reason.startswith("kv_bits: ")
        assert caught.value.permanent


@pytest.fixture(scope="module")
def adapter(folders: Callable[[str], Folder], tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """As mlx_lm.lora writes them."""
    folder = tmp_path_factory.mktemp("adapter")
    model, _ = load_model(folders("full_attention"))
    model.freeze()
    linear_to_lora_layers(model, 2, LORA)
    mx.random.seed(3)
    trained = {
        name: mx.random.normal(array.shape) * 0.1
        for name, array in tree_flatten(model.trainable_parameters())
    }
    mx.save_safetensors(str(folder / "adapters.safetensors"), trained)
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": LORA}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


class TestAdapter:
    def test_changes_the_text_and_counts(
        self, folders: Callable[[str], Folder], adapter: Folder
    ) -> None:
        base, adapted = _load(folders("full_attention")), _load(folders("full_attention"), adapter)
        trained = mx.load(str(adapter / "adapters.safetensors"))
        assert isinstance(trained, dict)
        added_bytes = sum(array.nbytes for array in trained.values())
        assert adapted.weight_bytes == base.weight_bytes + added_bytes
        made = _plain(adapted, GREEDY)
        assert made != _plain(base, GREEDY)
        assert made == _plain(adapted, GREEDY), "nothing drops out"

    def test_is_part_of_the_fingerprint(
        self, folders: Callable[[str], Folder], adapter: Folder, tmp_path: Folder
    ) -> None:
        model = folders("full_attention")
        copy = tmp_path / "copy"
        shutil.copytree(adapter, copy)
        seen = {fingerprint(model), fingerprint(model, copy)}
        assert fingerprint(model, copy) in seen
        (copy / "0000100_adapters.safetensors").write_bytes(b"an earlier state")
        assert fingerprint(model, copy) in seen
        weights = (copy / "adapters.safetensors").read_bytes()
        (copy / "adapters.safetensors").write_bytes(weights[:-1] + b"\x01")
        seen.add(fingerprint(model, copy))
        (copy / "adapter_config.json").write_text("{}")
        seen.add(fingerprint(model, copy))
        assert len(seen) == 4

    @pytest.mark.parametrize(
        ("name", "content", "reason"),
        [
            ("adapter_config.json", None, "has no adapter_config.json"),
            ("adapter_config.json", "{", "can't be read"),
            ("adapter_config.json", "[]", "must be an object"),
            ("adapter_config.json", '{"peft_type": "LORA"}', "adapter of PEFT"),
            ("adapter_config.json", '{"num_layers": 2}', "lora_parameters is None"),
            (
                "adapter_config.json",
                '{"num_layers": 2, "lora_parameters": {"rank": 4, "alpha": 1, "dropout": 0}}',
                "lora_parameters.scale is null, and must be a number (alpha isn't read)",
            ),
            (
                "adapter_config.json",
                '{"num_layers": 2, "lora_parameters": {"rank": 4, "scale": null, "dropout": 0}}',
                "lora_parameters.scale is null",
            ),
            (
                "adapter_config.json",
                '{"num_layers": 2, "lora_parameters": {"rank": "4", "scale": 1, "dropout": 0}}',
                'lora_parameters.rank is "4", and must be a whole number',
            ),
            ("adapters.safetensors", None, "has no adapters.safetensors"),
            ("adapters.safetensors", "torn", "damaged or incomplete"),
        ],
    )
    def test_broken_folders(
        self,
        name: str,
        content: str | None,
        reason: str,
        folders: Callable[[str], Folder],
        adapter: Folder,
        tmp_path: Folder,
    ) -> None:
        copy = tmp_path / "adapter"
        shutil.copytree(adapter, copy)
        (copy / name).unlink()
        if content is not None:
            (copy / name).write_text(content)
        with pytest.raises(ModelError) as caught:
            _load(folders("full_attention"), copy)
        assert reason in caught.value.reason
        assert caught.value.permanent

    @pytest.mark.parametrize(
        ("cache_kind", "reason"),
        [
            ("nothing", "has no tensors"),
            ("lora_a", "lacks 14 of the 28 tensors"),
            ("lora_b", "lacks 14 of the 28 tensors"),
            ("layers.0", "as model.layers.1.mlp.down_proj.lora_a"),
        ],
    )
    def test_lacks_tensors(
        self,
        cache_kind: str,
        reason: str,
        folders: Callable[[str], Folder],
        adapter: Folder,
        tmp_path: Folder,
    ) -> None:
        copy = tmp_path / "adapter"
        shutil.copytree(adapter, copy)
        path = str(copy / "adapters.safetensors")
        weights = mx.load(path)
        assert isinstance(weights, dict)
        mx.eval(weights)
        mx.save_safetensors(
            path, {name: weight for name, weight in weights.items() if cache_kind in name}
        )
        with pytest.raises(ModelError) as caught:
            _load(folders("full_attention"), copy)
        assert reason in caught.value.reason
        assert caught.value.permanent

    def test_of_another_model(self, folders: Callable[[str], Folder], adapter: Folder) -> None:
        with pytest.raises(ModelError, match="doesn't match the model"):
            _load(folders("sliding_window"), adapter)
        with pytest.raises(ModelError, match="no folder"):
            _load(folders("sliding_window"), adapter / "nowhere")


@pytest.fixture(scope="module")
def drafted(
    folders: Callable[[str], Folder], tmp_path_factory: pytest.TempPathFactory
) -> LoadedModel:
    """With a draft model that is often right: itself, a little changed."""
    folder = tmp_path_factory.mktemp("draft") / "model"
    shutil.copytree(folders("full_attention"), folder)
    path = str(folder / "model.safetensors")
    weights = mx.load(path)
    assert isinstance(weights, dict)
    mx.random.seed(5)
    changed = {
        name: weight + mx.random.normal(weight.shape) * 0.05 * mx.std(weight)
        for name, weight in weights.items()
    }
    mx.eval(changed)
    mx.save_safetensors(path, changed, {"format": "mlx"})
    return _load(folders("full_attention"), draft=folder)


class TestDraft:
    @pytest.mark.parametrize(
        ("sampling", "kv_bits"),
        [(GREEDY, None), (SEEDED, None), (PENALIZED, None), (SEEDED, 8)],
        ids=["greedy", "seeded", "penalized", "quantized"],
    )
    def test_gives_the_models_own_text(
        self, sampling: Sampling, kv_bits: int | None, drafted: LoadedModel
    ) -> None:
        caches = Caches(drafted.model, kv_bits)
        alone = BatchedEngine(caches.model, (), 8, UNBOUNDED, guesses=False)
        expected = _ids(_run(alone, _sequence(drafted, sampling)))
        cutter = Cutter(caches.run, caches.make)
        cache = PromptCache(cutter, None)
        paths = Paths(b"", None, needs_snapshots=cutter.needs_snapshots)
        draft = make_draft(caches.model, drafted.draft, 3)
        for known in (0, 128):
            engine = BatchedEngine(caches.model, (), 8, UNBOUNDED, cache, draft=draft)
            engine.step_costs.ratio = lambda _, width: float(width > 0)  # type: ignore[method-assign]
            made = _run(engine, _sequence(drafted, sampling, paths))
            assert _ids(made) == expected
            assert {token.cached_tokens for token in made} == {known}
            assert sum(token.guessed for token in made) > 0

    def test_counts(self, folders: Callable[[str], Folder], drafted: LoadedModel) -> None:
        alone = _load(folders("full_attention"))
        assert drafted.weight_bytes == 2 * alone.weight_bytes
        assert drafted.fingerprint == alone.fingerprint

    def test_unfit_models(self, folders: Callable[[str], Folder], tmp_path: Folder) -> None:
        full, states, chunked = (
            _load(folders(text)) for text in ("full_attention", "state_space", "chunked_attention")
        )
        with pytest.raises(ModelError, match="this one has a recurrent state"):
            make_draft(full.model, states.model, 3)
        with pytest.raises(ModelError, match="which has KVCache and chunked attention"):
            make_draft(chunked.model, full.model, 3)
        other = tmp_path / "other"
        shutil.copytree(folders("full_attention"), other)
        tokenizer = json.loads((other / "tokenizer.json").read_text())
        tokenizer["added_tokens"].append(
            {**tokenizer["added_tokens"][-1], "id": 5000, "content": "<|another|>"}
        )
        (other / "tokenizer.json").write_text(json.dumps(tokenizer))
        with pytest.raises(ModelError, match="other tokens"):
            _load(folders("full_attention"), draft=other)
        with pytest.raises(ModelError, match="The draft model: There is no folder"):
            _load(folders("full_attention"), draft=tmp_path / "nowhere")


class TestLoaded:
    """Through a worker's engine thread, as the gateway asks for them."""

    @staticmethod
    def events(load: Load) -> list[object]:
        """What comes of a load, and of one request if the model answers."""
        events: queue.SimpleQueue[None] = queue.SimpleQueue()
        thread = EngineThread(
            lambda thread: serve(thread, 0, spare=False), lambda: events.put(None)
        )
        thread.start()
        thread.post(load)
        seen: list[object] = []
        while not any(isinstance(item, LoadFailed | EngineEnd) for item in seen):
            events.get(timeout=60)
            event = thread.next_event()
            seen.append(event)
            if isinstance(event, ModelReady):
                generate = Generate("r", TokenPrompt(pack(PROMPT)), GREEDY, 4, ignore_eos=True)
                prepared = event.prepare(generate)
                assert isinstance(prepared, PreparedRequest)
                thread.post(prepared.sequence)
            if isinstance(event, EngineStep) and event.tokens[-1].finish_reason:
                thread.finish()
        thread.finish()
        return seen

    def test_with_everything(self, folders: Callable[[str], Folder], adapter: Folder) -> None:
        folder = str(folders("full_attention"))
        load = Load(
            folder,
            4,
            4096,
            kv_bits=8,
            adapter_path=str(adapter),
            draft_path=folder,
            draft_tokens=2,
        )
        events = self.events(load)
        ready = next(event.ready for event in events if isinstance(event, ModelReady))
        assert not ready.alone
        progress = [item for item in events if isinstance(item, LoadProgress)]
        assert progress[-1].loaded_bytes == progress[-1].total_bytes == ready.weight_bytes
        tokens = [token for step in events if isinstance(step, EngineStep) for token in step.tokens]
        assert len(tokens) == 4
        assert events[-1] == EngineEnd(failed=False)

    def test_quantized_caches_are_batched(self, folders: Callable[[str], Folder]) -> None:
        events = self.events(Load(str(folders("full_attention")), 4, 4096, kv_bits=4))
        (ready,) = [event.ready for event in events if isinstance(event, ModelReady)]
        assert not ready.alone
        tokens = [token for step in events if isinstance(step, EngineStep) for token in step.tokens]
        assert len(tokens) == 4

    def test_impossible_options_are_explained(self, folders: Callable[[str], Folder]) -> None:
        events = self.events(Load(str(folders("sliding_window")), 4, 4096, kv_bits=4))
        (failed,) = [event for event in events if isinstance(event, LoadFailed)]
        assert failed.permanent
        assert "a sliding window" in failed.reason

    def test_a_first_pass_that_raises_is_one_lasting_reason(
        self, folders: Callable[[str], Folder], tmp_path: Folder
    ) -> None:
        folder = tmp_path / "model"
        shutil.copytree(folders("full_attention"), folder)
        config = json.loads((folder / "config.json").read_text())
        config["rope_theta"] = "10000"
        (folder / "config.json").write_text(json.dumps(config))
        events = self.events(Load(str(folder), 4, 4096))
        assert isinstance(events[-1], LoadFailed)
        assert events[-1].permanent
        expected_reason = (
            'config.json: rope_theta is "10000", and must be a number. Correct the file, or'
        )
        assert expected_reason in events[-1].reason

    @pytest.mark.parametrize("part", ["measure", "practice"])
    @pytest.mark.parametrize(
        ("error", "lasts"),
        [
            (ValueError("[reshape] Cannot reshape array of size 8 into shape (3)."), True),
            (RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory"), False),
        ],
    )
    def test_errors_after_the_weights_are_reported(
        self,
        part: str,
        error: Exception,
        lasts: bool,
        folders: Callable[[str], Folder],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        if part == "measure":
            monkeypatch.setattr(Model, "__call__", fail)
        else:
            monkeypatch.setattr(WarmUp, "start", fail)
        events = self.events(Load(str(folders("full_attention")), 4, 4096))
        assert isinstance(events[-1], LoadFailed)
        assert events[-1].permanent is lasts
        assert str(error).rstrip(".") in events[-1].reason

    def test_prompts_of_different_models_share_no_blocks(self, drafted: LoadedModel) -> None:
        """What caches hold depends on how they are kept, and on whose they are: never on a draft
        model.
        """
        roots = {
            prompt_root(model, Load("", 1, 1, kv_bits=kv_bits))
            for model in (drafted, replace(drafted, fingerprint="another"))
            for kv_bits in (None, 4, 8)
        }
        assert len(roots) == 6
