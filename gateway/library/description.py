"""A model before its load: a description from the model's files, and whether it will fit."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.config.model_settings import ModelSettings
from gateway.library.hub_process import Planned
from gateway.memory.caches import language_of
from gateway.memory.estimate import EstimateTerms, estimated
from gateway.memory.fitting import Fit, fit
from gateway.memory.weights import EstimateError, Weights
from gateway.system.memory import back_end
from gateway.system.notation import format_size
from protocol.architectures import is_mlx_lms, is_mlx_vlms
from protocol.encoders import MLX_VLMS, encoder_of, makes_token_vectors
from protocol.extras import command_to_add
from protocol.model_files import (
    LARGEST_CONFIG_BYTES,
    DrafterKind,
    drafter_kind,
    read_config,
    read_file,
    read_header,
    refusal,
    text_table,
)
from protocol.model_folder import check_folder, templates_of, weight_files

logger = logging.getLogger(__name__)

_LONGEST_PROBLEM: Final = 300
_MOST_TOKENS: Final = 1 << 40
# What mlx-lm quantizes into. Other modes than affine have their own number of bits.
_BITS: Final = (2, 3, 4, 5, 6, 8)
_MODES: Final = ("mxfp4", "mxfp8", "nvfp4")
# As config.json and as safetensors call the types.
_TYPES: Final = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "BF16": "bf16",
    "F16": "fp16",
    "F32": "fp32",
}


class Description(Struct, frozen=True):
    """A model by its files. `abilities` are text, tools, vision, embeddings and rerank; a load
    shows whether the model really has them. `context_tokens` is the model's own limit, None if the
    files name no limit. `problem` says why the model isn't offered, None if it is.
    """

    architecture: str | None
    quantization: str | None
    context_tokens: int | None
    has_template: bool
    abilities: tuple[str, ...]
    problem: str | None = None


NOTHING: Final = Description(None, None, None, False, ())


def describe(folder: Path) -> Description:
    """Describe a model by its small files. An error becomes the `problem` of the description.
    Blocks.
    """
    try:
        description = _whole(folder)
        # A description with text that JSON can't express becomes a problem, too.
        msgspec.json.encode(description)
        return description
    except Exception as error:
        logger.debug("%s can't be described", folder, exc_info=True)
        if not isinstance(error, OSError | ValueError):
            error = ValueError(f"its files make no sense ({type(error).__name__}: {error})")
        return msgspec.structs.replace(NOTHING, problem=_shortened(str(error)))


def _shortened(problem: str) -> str:
    text = problem.encode(errors="replace").decode()
    return text if len(text) <= _LONGEST_PROBLEM else f"{text[: _LONGEST_PROBLEM - 1]}…"


def _whole(folder: Path) -> Description:
    """The description of a model. Raises all exceptions of reading and of decoding."""
    try:
        config = read_config(folder)
    except (OSError, ValueError) as error:
        raise ValueError(f"config.json can't be read: {error}") from error
    description = _described(folder, config)
    problem = problem_of(config) or _incomplete(folder)
    return (
        description
        if problem is None
        else msgspec.structs.replace(description, problem=_shortened(problem))
    )


def _described(folder: Path, config: dict[str, Any]) -> Description:
    text = language_of(config)
    templates = templates_of(folder).by_name.values()
    architecture = config.get("model_type")
    context = text.get("max_position_embeddings")
    late = makes_token_vectors(_modules(folder))
    encodes = late or encoder_of(config) is not None or (folder / "1_Pooling").is_dir()
    makes = "rerank" if late else "embeddings" if encodes else "text"
    sees = isinstance(config.get("vision_config"), dict) and not encodes
    abilities = (
        makes,
        *(("tools",) if not encodes and re.search(r"\btools?\b", "\n".join(templates)) else ()),
        *(("vision",) if sees else ()),
    )
    return Description(
        architecture=architecture if isinstance(architecture, str) else None,
        quantization=_quantization(config, folder),
        context_tokens=context if isinstance(context, int) and 0 < context < _MOST_TOKENS else None,
        has_template=any(templates),
        abilities=abilities,
    )


def _modules(folder: Path) -> Any:
    """What modules.json has; None: the file can't be read, or is missing."""
    try:
        return json.loads(read_file(folder / "modules.json", LARGEST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def _quantization(config: Mapping[str, Any], folder: Path) -> str | None:
    """The quantization, in the words of mlx-community: 4bit, mxfp4, bf16."""
    for key in ("quantization", "quantization_config"):
        if isinstance(given := config.get(key), dict):
            mode, bits = given.get("mode", "affine"), given.get("bits")
            method = given.get("quant_method")
            if method is None and not _has_scales(folder):
                # mlx-lm leaves layers as they are that have none.
                break
            if mode in _MODES:
                return str(mode)
            if mode == "affine" and bits in _BITS:
                return f"{bits}bit"
            return method if isinstance(method, str) else None
    text = {**config, **text_table(config)}
    kind = _type_of_weights(folder) or text.get("torch_dtype") or text.get("dtype")
    return _TYPES.get(kind, kind) if isinstance(kind, str) else None


def _type_of_weights(folder: Path) -> str | None:
    """The type of most bytes of the weights, which config.json need not tell rightly: whoever
    converts weights may leave it as it was. None: the files can't be read, or have no weights.
    """
    held: Counter[str] = Counter()
    try:
        for header in map(read_header, weight_files(folder)):
            for tensor in header.tensors.values():
                held[tensor.dtype] += tensor.end - tensor.begin
    except (OSError, ValueError):
        return None
    return next((kind for kind, _ in held.most_common(1)), None)


def _has_scales(folder: Path) -> bool:
    try:
        headers = map(read_header, weight_files(folder))
        return any(name.endswith("scales") for header in headers for name in header.tensors)
    except (OSError, ValueError):
        return True  # Files that can't be read don't speak against config.json.


def _incomplete(folder: Path) -> str | None:
    """Why a load couldn't read the model's files. None: all of them are there, and whole."""
    try:
        check_folder(folder)
    except OSError as error:
        return f"its files can't be read: {error}"
    except ValueError as error:
        return f"it is not whole: {error}"
    return None


def problem_of(config: Mapping[str, Any]) -> str | None:
    """Why no library loads the model here; None: one of them does."""
    if drafter_kind(config) in (DrafterKind.HEAD, DrafterKind.EAGLE3):
        return "it only guesses for another model, which names it as its draft_model"
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return "config.json names no model_type"
    if (reason := refusal(config)) is not None:
        return reason
    encoder = encoder_of(config)
    if encoder == "":
        return f"nothing here loads encoders of the kind {kind}"
    if encoder is not None:
        library, extra = ("vlm", "vision") if encoder in MLX_VLMS else ("embeddings", "embeddings")
        missing = find_spec(f"mlx_{library}") is None
        return f"it needs mlx-{library}: {command_to_add(extra)}" if missing else None
    if is_mlx_lms(kind) or is_mlx_vlms(kind):
        return None
    problem = f"mlx-lm knows no models of the kind {kind}"
    if find_spec("mlx_vlm") is None:
        return f"{problem}; mlx-vlm may know them: {command_to_add('vision')}"
    return f"{problem}, and mlx-vlm none that write text"


_TOKENS: Final = 8_000
_DEFAULTS: Final = ModelSettings(path="")

Assessment: TypeAlias = Literal["fits", "fits with a shorter context", "doesn't fit"]


class Outlook(Struct, frozen=True):
    """Whether a model will fit: its load needs `needed_bytes` of the `possible_bytes` that it can
    have beside pinned models. Then `rows` sequences of `row_tokens` have room at once, with a
    context of `context_tokens`. `sentence` says all of that.
    """

    fits: bool
    assessment: Assessment = msgspec.field(name="verdict")
    needed_bytes: int
    possible_bytes: int
    context_tokens: int
    rows: int
    row_tokens: int
    sentence: str


def outlook(
    planned: Planned, possible_bytes: int, process_bytes: int, ordinary_tokens: int
) -> Outlook | None:
    """Whether a model that is to be pulled will fit; None: its config.json doesn't show that. The
    headers of the files count as weights, as headers are small.
    """
    try:
        estimate = estimated(
            planned.config,
            Weights(planned.weight_bytes, planned.element_bytes),
            EstimateTerms(
                _DEFAULTS.context_tokens, ordinary_tokens, process_bytes, None, back_end()
            ),
            f"config.json of {planned.repository}",
        )
    except EstimateError:
        return None
    result = fit(estimate, possible_bytes)
    tokens = min(_TOKENS, result.context_tokens)
    rows = estimate.rows(possible_bytes, tokens)
    assessment: Assessment = "fits"
    if not result.fits:
        assessment = "doesn't fit"
    elif result.is_cut:
        assessment = "fits with a shorter context"
    return Outlook(
        result.fits,
        assessment,
        result.needed_bytes,
        possible_bytes,
        result.context_tokens,
        rows,
        tokens,
        _sentence(result, rows, tokens),
    )


def _sentence(result: Fit, rows: int, tokens: int) -> str:
    asks = (
        f"its floor is {format_size(result.needed_bytes)}, and "
        f"{format_size(result.possible_bytes)} can be had beside what is pinned"
    )
    if not result.fits:
        return f"It won't fit: {asks}."
    cut = f" with {result.context_tokens:,} tokens of context" if result.is_cut else ""
    sequences = "1 sequence" if rows == 1 else f"{rows:,} sequences"
    return f"It will fit{cut}: {asks}. {sequences} of {tokens:,} tokens will have room at once."
