"""The recipe for vectors in a model's files, which are those of sentence-transformers."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from protocol.encoders import encoder_of, makes_token_vectors
from worker.vectors.pooling import Pooling

_POOLINGS: Final = get_args(Pooling)
# The names of poolings before sentence-transformers 5.4, in the order in which results are joined.
_OLD_NAMES: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_IGNORED_MODULES: Final = ("Transformer", "Dropout")
# The poolings in config.json of NVIDIA's models.
_CONFIG_POOLINGS: Final[Mapping[Any, Pooling]] = {
    "avg": "mean",
    "cls": "cls",
    "last": "lasttoken",
}


class RecipeError(Exception):
    """A model's files can't be read, or ask for something that this worker can't do. The text is a
    sentence about it.
    """


@dataclass(frozen=True)
class TokenMarks:
    """How texts are marked for a model that makes a vector of each token. A prefix is one token,
    the second of a text; empty: there is none. Shorter queries are `expanded` to `query_tokens`
    tokens. The other tokens see these only with `expansion_seen`. The vectors of `skipped_words`
    of documents don't count. The defaults are PyLate's.
    """

    query_prefix: str = "[Q] "
    document_prefix: str = "[D] "
    query_tokens: int = 32
    document_tokens: int = 180
    expanded: bool = True
    expansion_seen: bool = False
    skipped_words: tuple[str, ...] = tuple(string.punctuation)


@dataclass(frozen=True)
class Recipe:
    """How hidden states become a vector. The results of several `poolings` are joined. `dense` are
    the folders of the layers after the pooling. `prompts`, by name, go before texts; `with_prompt`
    says whether a prompt's tokens are pooled, too. `most_tokens` bounds a text, beside the model's
    own bound. `dimensions` are the lengths to which vectors may be cut; True: any length. `yes_no`
    are the ids of the two tokens that a reranker compares. With `marks` the model makes a vector of
    each token (late interaction), and nothing is pooled.
    """

    poolings: tuple[Pooling, ...]
    normalized: bool = True
    dense: tuple[Path, ...] = ()
    with_prompt: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    most_tokens: int | None = None
    dimensions: bool | tuple[int, ...] = False
    yes_no: tuple[int, int] | None = None
    marks: TokenMarks | None = None


def encoder_pooling(config: Mapping[str, Any]) -> Pooling:
    """The pooling of an encoder whose files name none."""
    default: Pooling = "cls" if encoder_of(config) == "lfm2_embedding" else "mean"
    named = config.get("pooling")
    return _CONFIG_POOLINGS.get(named, default) if isinstance(named, str) else default


def read_recipe(folder: Path, config: Mapping[str, Any], default: Pooling) -> Recipe:
    """The recipe in a model's files. `default` is the pooling if the files name none.

    Raises:
        RecipeError: the files can't be read, or ask for something that this worker can't do.
    """
    try:
        return _read(folder, config, default)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecipeError(
            f"The files for embeddings in {folder} can't be read: {type(error).__name__} {error}"
        ) from error


def _read(folder: Path, config: Mapping[str, Any], default: Pooling) -> Recipe:
    top_settings = _json(folder / "config_sentence_transformers.json")
    shared: dict[str, Any] = {
        "prompts": {k: str(v) for k, v in (top_settings.get("prompts") or {}).items()},
        "default_prompt": top_settings.get("default_prompt_name"),
        "most_tokens": _json(folder / "sentence_bert_config.json").get("max_seq_length"),
        "dimensions": _dimensions(config),
    }
    path = folder / "modules.json"
    if not path.is_file():
        return Recipe((default,), **shared)
    poolings: tuple[Pooling, ...] = (default,)
    normalized = with_prompt = False
    dense: list[Path] = []
    yes_no = None
    modules = json.loads(path.read_text("utf-8"))
    for module in modules:
        kind, place = str(module["type"]).rpartition(".")[2], folder / str(module["path"])
        match kind:
            case "Pooling":
                settings = _json(place / "config.json")
                poolings = _poolings(settings)
                with_prompt = bool(settings.get("include_prompt", True))
            case "Dense":
                dense.append(place)
            case "Normalize":
                normalized = True
            case "LogitScore":
                settings = _json(place / "config.json")
                yes_no = (int(settings["true_token_id"]), int(settings["false_token_id"]))
            case _ if kind not in _IGNORED_MODULES:
                raise RecipeError(f"{path} has a module {kind}, which isn't supported.")
    if makes_token_vectors(modules):
        marks = _marks(top_settings)
        shared |= {"most_tokens": marks.document_tokens, "marks": marks}
    return Recipe(poolings, normalized, tuple(dense), with_prompt, yes_no=yes_no, **shared)


def _marks(settings: Mapping[str, Any]) -> TokenMarks:
    names = {
        "query_prefix": "query_prefix",
        "document_prefix": "document_prefix",
        "query_length": "query_tokens",
        "document_length": "document_tokens",
        "do_query_expansion": "expanded",
        "attend_to_expansion_tokens": "expansion_seen",
    }
    given = {ours: settings[name] for name, ours in names.items() if settings.get(name) is not None}
    if (words := settings.get("skiplist_words")) is not None:
        given["skipped_words"] = tuple(map(str, words))
    return TokenMarks(**given)


def _poolings(settings: Mapping[str, Any]) -> tuple[Pooling, ...]:
    mode = settings.get("pooling_mode")
    names = [mode] if isinstance(mode, str) else mode
    if names is None:
        names = [new for old, new in _OLD_NAMES.items() if settings.get(old)]
    unknown = [name for name in names if name not in _POOLINGS]
    if unknown or not names:
        raise RecipeError(f"The model pools by {unknown or names}, which isn't supported.")
    return tuple(names)


def _dimensions(config: Mapping[str, Any]) -> bool | tuple[int, ...]:
    """The `dimensions` of a recipe, by the keys that vLLM reads in config.json."""
    if isinstance(lengths := config.get("matryoshka_dimensions"), list):
        return tuple(int(length) for length in lengths)
    return bool(config.get("is_matryoshka"))


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text("utf-8"))
    return value if isinstance(value, dict) else {}
