"""Loads a model from a folder, its weights in slices. A load that fails has one readable reason."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from protocol.architectures import is_mlx_lms, is_mlx_vlms
from protocol.encoders import MLX_VLMS, encoder_of
from protocol.extras import command_to_add
from protocol.model_files import DrafterKind, read_config, read_header, text_table
from protocol.model_folder import end_token_ids, templates_of, weight_files
from protocol.requests import SamplingDefaults
from worker import mlx_embeddings as encoders
from worker import mlx_vlm_encoders
from worker.load.drafters import (
    DrafterFolder,
    find_drafter,
    find_head_beside,
    named_as_draft,
    read_arrays,
)
from worker.load.faults import fault_of, reason_of
from worker.load.files import (
    WEIGHTS,
    add_adapter,
    as_opened,
    check_adapter,
    check_files,
    check_shard,
    find_folder,
    fingerprint,
    sampling_defaults,
)
from worker.mlx_lm import models
from worker.mlx_lm.eagle3 import Eagle3
from worker.mlx_lm.heads import with_own_head
from worker.mlx_lm.macos import Reads
from worker.sampling.scores import TokenBytes
from worker.structure.constraints import Constraints, GrammarCache
from worker.system.errors import LoadAbandonedError, ModelError, may_pass, one_sentence
from worker.template.chat_template import ChatTemplate
from worker.text.families import find_format
from worker.text.format import AnswerFormat
from worker.transformers import show_torch

if TYPE_CHECKING:
    from worker.vision.pictures import PictureProcessor

# Bytes that are read between two calls of `should_stop`: few for a quick stop, many for little
# overhead.
_SLICE_BYTES: Final = 64 << 20
# MLX gets in advance as many bytes to read as it reads in this time, since the tokenizer's thread
# holds Python's lock for as long. A stop waits for as long, too.
_AHEAD_S: Final = 0.5


@dataclass(frozen=True)
class LoadedModel:
    model: Any
    tokenizer: Any
    weight_bytes: int
    vocabulary: int
    context_tokens: int | None
    fingerprint: str
    sampling_defaults: SamplingDefaults
    config: dict[str, Any]
    folder: Path
    answer_format: AnswerFormat
    chat_template: ChatTemplate
    constraints: Constraints
    # Whether the files lack the head, which makes logits of a decoder's states.
    is_headless: bool = False
    # The draft model, which is smaller and has the same tokens, or EAGLE-3.
    draft: Any = None
    # Makes the model's inputs of pictures. None: the model is loaded without pictures.
    picture_processor: PictureProcessor | None = None
    # Whether mlx-vlm computes the model, and not mlx-lm.
    is_by_mlx_vlm: bool = False

    @cached_property
    def xtc_spared(self) -> tuple[int, ...]:
        """The tokens that XTC never excludes: those that end an answer or a line, as in
        mlx_lm.server.
        """
        line = self.tokenizer.encode("\n", add_special_tokens=False)
        return tuple(dict.fromkeys((*self.eos_token_ids, *line)))

    @cached_property
    def token_bytes(self) -> TokenBytes:
        return TokenBytes(self.tokenizer)

    @property
    def is_encoder(self) -> bool:
        """Whether the model is an encoder, which writes no text."""
        return encoder_of(self.config) is not None

    @property
    def eos_token_ids(self) -> Iterable[int]:
        ids: Iterable[int] = self.tokenizer.eos_token_ids
        return ids


def load(
    source: str,
    on_progress: Callable[[int, int], None],
    should_stop: Callable[[], bool],
    adapter_path: str | None = None,
    draft_path: str | None = None,
    *,
    pictures: bool = False,
    own_head: bool = False,
    part: Callable[[Any, dict[str, Any]], None] | None = None,
) -> LoadedModel:
    """Load the model of `source`, a folder or a repository in the Hugging Face cache. An adapter is
    added to the model, and a draft model is loaded beside it. With `pictures` the model can look at
    pictures. With `own_head` it gets the head for several tokens that its files may have, or that
    mlx-vlm has put beside them. `part` gets the model and its configuration, and removes the layers
    that other ranks compute.

    `on_progress` gets (bytes read, bytes in all) after each slice of weights.

    Raises:
        ModelError: the model can't be loaded.
        LoadAbandonedError: `should_stop` returned True after a slice.
    """
    folder = find_folder(source)
    check_files(folder, pictures=pictures)
    adapter = None if adapter_path is None else Path(adapter_path)
    with one_reason():
        if pictures and (adapter is not None or draft_path is not None):
            raise ModelError(
                "pictures: a model that looks at them can have neither adapter nor draft_model."
            )
        if adapter is not None:
            check_adapter(adapter)
            check_shard(adapter / WEIGHTS)
        drafter = None if draft_path is None else find_drafter(draft_path)
        head = find_head_beside(folder) if own_head else None
        if drafter is not None and drafter.kind is DrafterKind.HEAD:
            head = drafter.folder
        before = fingerprint(folder, adapter, pictures=pictures)
        unread = _build(folder, adapter, pictures=pictures, own_head=own_head, head=head)
        if part is not None:
            part(unread.model, unread.config)
        words, draft, weight_bytes = _read(unread, drafter, on_progress, should_stop)
        if fingerprint(folder, adapter, pictures=pictures) != before:
            raise ModelError(f"The files in {folder} changed during the load.", permanent=False)
    return LoadedModel(
        model=unread.model,
        weight_bytes=weight_bytes,
        context_tokens=context_tokens_of(unread.config),
        config=unread.config,
        folder=folder,
        is_headless=is_headless(folder),
        fingerprint=before,
        sampling_defaults=sampling_defaults(folder),
        draft=draft,
        picture_processor=unread.picture_processor,
        is_by_mlx_vlm=unread.is_by_mlx_vlm,
        **words._asdict(),
    )


class _UnreadModel(NamedTuple):
    """A model whose weights are not read yet."""

    folder: Path
    model: Any
    config: dict[str, Any]
    picture_processor: PictureProcessor | None
    is_by_mlx_vlm: bool
    reads: Reads


def _build(
    folder: Path, adapter: Path | None, *, pictures: bool, own_head: bool, head: Path | None
) -> _UnreadModel:
    reads, picture_processor, is_by_mlx_vlm = Reads(), None, pictures
    with reads.recorded():
        if pictures:
            model, config, picture_processor = _load_vision(folder)
        else:
            split = None if head is None else read_arrays(head)
            model, config, is_by_mlx_vlm = load_text(folder, own_head=own_head, split=split)
        if adapter is not None:
            if is_by_mlx_vlm:
                raise ModelError("adapter: mlx-vlm computes this model, and adapters are mlx-lm's.")
            add_adapter(model, adapter)
    return _UnreadModel(folder, model, config, picture_processor, is_by_mlx_vlm, reads)


def _read(
    unread: _UnreadModel,
    drafter: DrafterFolder | None,
    on_progress: Callable[[int, int], None],
    should_stop: Callable[[], bool],
) -> tuple[_TextParts, Any, int]:
    """Read the tokenizer, the draft model and all weights. The number is the weights' bytes."""
    folder, model, config, _, _, reads = unread
    # Reading a tokenizer with a large vocabulary takes a second. Meanwhile weights are read.
    with ThreadPoolExecutor(1, "tokenizer") as beside:
        reading = beside.submit(_read_text_parts, folder, config)
        draft = None
        if drafter is not None:
            with reads.recorded():
                draft = _load_draft(drafter, reading.result(), model)

        def stops() -> bool:
            if reading.done():
                reading.result()
            return should_stop()

        models = [model] if draft is None else [model, draft]
        weight_bytes = _read_weights(models, reads, on_progress, stops)
        return reading.result(), draft, weight_bytes


@contextmanager
def one_reason(explain: Callable[[Exception], str] = one_sentence) -> Iterator[None]:
    """Turn any failure in the block into a ModelError, except LoadAbandonedError. `explain` makes
    the reason of a failure that lasts.
    """
    try:
        yield
    except (LoadAbandonedError, ModelError):
        raise
    except Exception as error:
        # Each architecture parses config.json in its own way, and fails in its own way.
        if may_pass(error):
            raise ModelError(one_sentence(error), permanent=False) from error
        raise ModelError(explain(error)) from error


class _TextParts(NamedTuple):
    """The parts of a loaded model that write its prompts and read its answers."""

    tokenizer: Any
    vocabulary: int
    answer_format: AnswerFormat
    chat_template: ChatTemplate
    constraints: Constraints


def _read_text_parts(folder: Path, config: dict[str, Any]) -> _TextParts:
    tokenizer = read_tokenizer(folder)
    vocabulary = _vocabulary(config, tokenizer)
    answer_format = find_format(tokenizer)
    compiled = GrammarCache(tokenizer, vocabulary, tokenizer.eos_token_ids)
    return _TextParts(
        tokenizer,
        vocabulary,
        answer_format,
        ChatTemplate(tokenizer),
        Constraints(compiled, tokenizer, answer_format),
    )


def needs_mlx_vlm(config: dict[str, Any]) -> bool:
    """Whether at most mlx-vlm has the model's architecture."""
    return encoder_of(config) is None and not is_mlx_lms(config["model_type"])


def load_text(
    folder: Path, *, own_head: bool = False, split: Mapping[str, mx.array] | None = None
) -> tuple[Any, dict[str, Any], bool]:
    """A model for texts alone, whose weights are read when they are needed, and its configuration.
    The last is whether mlx-vlm computes it. `own_head` and `split` are as for `classes_of`.

    Raises:
        ModelError: no library can make the model of its files.
    """
    config = read_config(folder)
    kind = config["model_type"]
    if needs_mlx_vlm(config):
        return *_load_language(folder, kind), True
    try:
        return *load_weights(folder, own_head=own_head, split=split), False
    except ModelError as error:
        if not _may_suit_mlx_vlm(error, folder, config):
            raise
        try:
            return *_load_language(folder, kind), True
        except ModelError:
            raise error from error.__cause__


def _may_suit_mlx_vlm(error: ModelError, folder: Path, config: dict[str, Any]) -> bool:
    """Whether mlx-vlm may load a model with which mlx-lm failed: mlx-vlm has defaults where
    config.json has faults, so there must be none.
    """
    if encoder_of(config) is not None or is_headless(folder):
        return False
    cause = error.__cause__
    if not error.permanent or not isinstance(cause, Exception):
        return False
    return is_mlx_vlms(config["model_type"]) and fault_of(cause, folder) is None


def _load_language(folder: Path, kind: str) -> tuple[Any, dict[str, Any]]:
    """A model that mlx-vlm knows, without the parts that don't write text."""
    unknown = f"mlx-lm doesn't know models of type {kind}"
    if find_spec("mlx_vlm") is None:
        raise ModelError(
            f"{unknown}. mlx-vlm may, and isn't installed. This installs it: "
            f"{command_to_add('vision')}"
        )
    if not is_mlx_vlms(kind):
        raise ModelError(f"{unknown}, and mlx-vlm knows none that write text.")
    # Before mlx-vlm imports what processors are made of.
    show_torch()

    from worker.vision.language import load_language

    with (
        one_reason(lambda error: reason_of(error, folder, "The model can't be loaded")),
        as_opened(folder, pictures=True) as opened,
    ):
        return load_language(opened)


def _load_vision(folder: Path) -> tuple[Any, dict[str, Any], PictureProcessor]:
    # mlx-vlm is an optional dependency.
    if find_spec("mlx_vlm") is None:
        raise ModelError(
            "pictures: mlx-vlm, which looks at them, isn't installed. This installs it: "
            f"{command_to_add('vision')}"
        )
    # Before mlx-vlm imports what processors are made of.
    show_torch()

    from worker.vision.model import NoVisionError, load_vision

    with one_reason(lambda error: reason_of(error, folder, "The model can't be loaded")):
        try:
            with as_opened(folder, pictures=True) as opened:
                return load_vision(opened)
        except NoVisionError as error:
            raise ModelError(f"pictures: {error}.") from error


def _load_draft(drafter: DrafterFolder, words: _TextParts, beside: Any) -> Any:
    """Load the draft model, which is to guess for the model `beside`. None: it is a head, which is
    a part of that model. Its weights are read later, together with the model's.
    """
    folder, kind = drafter
    if kind is DrafterKind.HEAD:
        if getattr(beside, "mtp", None) is None:
            raise ModelError(
                f"The draft model: the head in {folder} doesn't fit the model, whose layers have "
                "another shape, or whose architecture has no such heads."
            )
        return None
    if kind is DrafterKind.EAGLE3:
        with (
            named_as_draft(),
            one_reason(lambda error: f"{folder} can't be loaded: {one_sentence(error)}"),
        ):
            return Eagle3(read_config(folder), read_arrays(folder))
    with named_as_draft():
        model, config = load_weights(folder)
        tokenizer = read_tokenizer(folder)
    if tokenizer.get_vocab() != words.tokenizer.get_vocab():
        raise ModelError(f"The draft model in {folder} has other tokens than the model.")
    if _vocabulary(config, tokenizer) > words.vocabulary:
        # The draft model could guess a token that has no embedding in the model.
        raise ModelError(
            f"The draft model in {folder} has {_vocabulary(config, tokenizer)} embeddings, the "
            f"model {words.vocabulary}."
        )
    return model


def read_tokenizer(folder: Path) -> Any:
    try:
        templates = templates_of(folder)
        return models.read_tokenizer(
            folder, end_token_ids(folder), templates.by_name if templates.of_processor else None
        )
    except Exception as error:
        # transformers has many readers, each of which fails in its own way on damaged files.
        text = f"The tokenizer in {folder} can't be loaded: {one_sentence(error)}"
        raise ModelError(fault_of(error, folder) or text) from error


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    nested = config.get("text_config") or {}
    if not isinstance(nested, dict):
        raise ModelError(f"config.json: text_config is {nested!r}, and must be an object.")
    return {**config, **text_table(config)}


def _vocabulary(config: dict[str, Any], tokenizer: Any) -> int:
    return int(_text_config(config).get("vocab_size", len(tokenizer)))


def load_weights(
    folder: Path, *, own_head: bool = False, split: Mapping[str, mx.array] | None = None
) -> tuple[Any, dict[str, Any]]:
    """The model in a folder, whose weights are read when they are needed, and its configuration.
    `own_head` and `split` are as for `classes_of`.

    Raises:
        ModelError: its files can't be understood, or don't belong together.
    """
    headless = is_headless(folder)

    def explain(error: Exception) -> str:
        if isinstance(error, encoders.EncoderError | mlx_vlm_encoders.UnfitEncoderError):
            return str(error)
        return reason_of(error, folder, "The model can't be loaded")

    with one_reason(explain), as_opened(folder) as opened:
        return models.read_model(
            opened,
            lambda config: classes_of(config, headless=headless, own_head=own_head, split=split),
        )


def classes_of(
    config: dict[str, Any],
    *,
    headless: bool = False,
    own_head: bool = False,
    split: Mapping[str, mx.array] | None = None,
) -> tuple[type, Any]:
    """The classes of a model and of its arguments. With `headless` the files lack the head that
    makes logits. With `own_head` the model keeps its head for several tokens, if it has one.
    Otherwise it gets the head whose weights are `split`, if these are of its shape.
    """
    if (encoder := encoder_of(config)) in MLX_VLMS:
        # Before mlx-vlm imports what processors are made of.
        show_torch()
        return mlx_vlm_encoders.classes_of(config)
    if encoder is not None:
        return encoders.classes_of(config)
    if headless:
        return models.with_head(config)
    classes = with_own_head(models.classes_of(config), with_head=own_head, split=split)
    return models.without_spare_head(classes, config)


def is_headless(folder: Path) -> bool:
    """Whether the files lack the head, as with many decoders that only make embeddings. In such
    files the names of the weights have no prefix (Qwen3-Embedding).
    """
    if not (folder / "modules.json").is_file():
        return False
    headers = map(read_header, weight_files(folder))
    return any(name.startswith("layers.") for header in headers for name in header.tensors)


def context_tokens_of(config: dict[str, Any]) -> int | None:
    if encoder_of(config) is not None:
        return encoders.context_tokens_of(config)
    value = _text_config(config).get("max_position_embeddings")
    return value if isinstance(value, int) and value > 0 else None


def _read_weights(
    models: Iterable[Any],
    reads: Reads,
    on_progress: Callable[[int, int], None],
    should_stop: Callable[[], bool],
) -> int:
    arrays: list[mx.array] = [
        array
        for model in models
        for array in dict(tree_flatten(model.parameters())).values()
        # Layers of another rank are None.
        if isinstance(array, mx.array)
    ]
    total = sum(array.nbytes for array in arrays)
    done = ahead_bytes = 0
    ahead: deque[_Slice] = deque()
    began_at = time.monotonic()

    def await_first() -> None:
        nonlocal done, ahead_bytes
        first = ahead.popleft()
        mx.eval(first.arrays)
        ahead_bytes -= first.nbytes
        done += first.nbytes
        on_progress(done, total)
        if should_stop():
            raise LoadAbandonedError

    for part in _slices(arrays, reads):
        if part.sources:
            # Otherwise the sources of two slices would take memory at the same time.
            while ahead:
                await_first()
            mx.eval(part.sources)
            # MLX frees a source once the arrays are computed, unless there is a reference here.
            part.sources.clear()
        mx.async_eval(part.arrays)  # type: ignore[no-untyped-call] # MLX leaves its types out
        ahead.append(part)
        ahead_bytes += part.nbytes
        while len(ahead) > 1 and ahead_bytes > done / (time.monotonic() - began_at) * _AHEAD_S:
            await_first()
    while ahead:
        await_first()
    return total


class _Slice(NamedTuple):
    """Arrays that are read together. The `sources`, from which arrays are computed, come first."""

    arrays: list[mx.array]
    sources: list[mx.array]
    nbytes: int


def _slices(arrays: Iterable[mx.array], reads: Reads) -> Iterator[_Slice]:
    pending = _Slice([], [], 0)
    read_bytes = 0
    for array in arrays:
        known = len(pending.sources)
        pending.sources.extend(reads.sources_of(array))
        pending.arrays.append(array)
        pending = pending._replace(nbytes=pending.nbytes + array.nbytes)
        read_bytes += max(array.nbytes, sum(source.nbytes for source in pending.sources[known:]))
        if read_bytes >= _SLICE_BYTES:
            yield pending
            pending, read_bytes = _Slice([], [], 0), 0
    yield pending
