"""What a load takes from a model's folder: weights, tokenizer, chat templates and end tokens.
Discovery, estimates, checks, loads and pulls all ask here, so that they judge the same files.

The weights are what mlx-lm opens: the visible files `model*.safetensors`. mlx-lm never reads their
index, which is often of other files: of the model before it was quantized, or of PyTorch's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from protocol.model_files import AGAIN, check_json, read_file, read_header, read_table

INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = re.compile(r"model[^/]*\.safetensors")
_SHARD: Final = re.compile(r"(model.*?)(\d{1,15})-of-(\d{1,15})\.safetensors")
_TEKKEN: Final = "tekken.json"
_SPECIAL_TOKENS: Final = re.compile(rb'"special_tokens"\s*:\s*\[')
# The files of which transformers makes a tokenizer.
TOKENIZERS: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "vocab.json",
    "vocab.txt",
    _TEKKEN,
)
_PULL: Final = "pull the model again"
# Weights of other formats, and what reads them.
_OTHERS: Final = (
    (
        ".gguf",
        "GGUF, which MLX doesn't read",
        ", or have llama-server serve it (docs/other-servers.md)",
    ),
    (".bin", "PyTorch's files, which MLX doesn't read", ""),
    (".pth", "PyTorch's files, which MLX doesn't read", ""),
    (".npz", "numpy's files, which mlx-lm reads no more", ""),
)


class _Set(NamedTuple):
    """Weights that belong together: a whole file, or shards that are numbered up to the same total
    (model-00001-of-00003.safetensors). A whole file has no `digits`.
    """

    begin: str
    digits: int
    total: str
    names: dict[int, str]

    @property
    def stem(self) -> str:
        return self.begin.rstrip("-_.")

    @property
    def label(self) -> str:
        if len(self.names) == 1:
            return next(iter(self.names.values()))
        return f"{self.begin}*-of-{self.total}.safetensors"

    @property
    def missing(self) -> str | None:
        first = 0 if 0 in self.names else 1
        wanted = range(first, first + int(self.total))
        number = next((number for number in wanted if number not in self.names), None)
        if number is None:
            return None
        return f"{self.begin}{number:0{self.digits}}-of-{self.total}.safetensors"


def opened(names: Iterable[str], is_sound: Callable[[str], bool] = lambda _name: True) -> list[str]:
    """The files of weights that a load opens, among the names in a folder. `is_sound` tells whether
    a file can be read, and is asked only if not all files are needed.

    mlx-lm opens all of them, and would mix what another download has left into the model, or fail
    by it. Of the same name in several numberings, or whole, one is opened: the complete one with
    most shards. Others are opened beside the main one if they are complete.
    """
    chosen = _chosen(names, is_sound)
    return sorted(name for weights in chosen for name in weights.names.values())


def _chosen(names: Iterable[str], is_sound: Callable[[str], bool]) -> list[_Set]:
    """The sets that a load opens, the main one first."""
    by_stem: dict[str, list[_Set]] = {}
    for weights in _sets(names):
        by_stem.setdefault(weights.stem, []).append(weights)

    def worth(weights: _Set) -> tuple[bool, int, int, int]:
        sound = sum(map(is_sound, weights.names.values()))
        whole = weights.missing is None and sound == len(weights.names)
        return whole, sound, weights.digits, int(weights.total)

    if len(by_stem) == 1 and len(only := next(iter(by_stem.values()))) == 1:
        return only
    best = [max(by_stem[stem], key=worth) for stem in sorted(by_stem, key=lambda s: (len(s), s))]
    return best[:1] + [weights for weights in best[1:] if worth(weights)[0]]


def _sets(names: Iterable[str]) -> list[_Set]:
    sets: dict[tuple[str, str], _Set] = {}
    for name in sorted(names):
        if match := _SHARD.fullmatch(name):
            begin, number, total = match.groups()
            shards = sets.setdefault((begin, total), _Set(begin, len(number), total, {}))
            shards.names[int(number)] = name
        elif _WEIGHTS.fullmatch(name):
            sets[name, ""] = _Set(name.removesuffix(".safetensors"), 0, "1", {1: name})
    return list(sets.values())


def check_names(names: Collection[str]) -> None:
    """Raise ValueError if a folder with files of these names can't be whole. The text says what is
    missing.
    """
    _check_sets(_chosen(names, lambda _name: True), names)


def _check_sets(chosen: list[_Set], names: Collection[str]) -> None:
    if not any(name in names for name in TOKENIZERS):
        raise ValueError("there is no tokenizer (tokenizer.json or tokenizer.model)")
    if not chosen:
        part = _part_of("model", names)
        raise ValueError(f"there are no weights that MLX reads (model*.safetensors){part}")
    for weights in chosen:
        if (missing := weights.missing) is not None:
            raise ValueError(f"{missing} is missing{_part_of(missing, names)}")


def _part_of(name: str, names: Iterable[str]) -> str:
    """The message for the unfinished download of a file: a file of its name and some more."""
    alike = (other for other in names if name in other and ".safetensors." in other)
    parts = (other for other in alike if not other.startswith("._") and not other.endswith(".json"))
    part = min(parts, default=None)
    return "" if part is None else f", and {part} is unfinished"


def weight_files(folder: Path, *, pictures: bool = False) -> list[Path]:
    """The files of weights that a load opens. With `pictures`, mlx-vlm's part may be in files of
    other names and in folders (optiq/optiq_vision.safetensors), which only the index tells.

    Raises: OSError.
    """
    names = opened((path.name for path in folder.iterdir()), _is_sound_in(folder))
    if pictures:
        names += sorted(beside(indexed(folder)))
    return [folder / name for name in names]


def indexed(folder: Path) -> set[str]:
    """The files that an index names and that are there. Empty: there is no index that says that."""
    try:
        placed = read_table(folder / INDEX)["weight_map"].values()
        return {name for name in placed if (folder / name).is_file()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def beside(names: Iterable[str]) -> set[str]:
    """Of the files that an index names, those that only a load with pictures opens."""
    return {name for name in names if _is_beside(name)}


def _is_beside(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = path.is_absolute() or any(part.startswith(".") for part in path.parts)
    return path.suffix == ".safetensors" and not hidden and not _WEIGHTS.fullmatch(name)


def check_folder(folder: Path, *, pictures: bool = False, drafter: bool = False) -> None:
    """Check the files that a load opens. A `drafter` that works only beside its model needs no
    tokenizer.

    Raises:
        OSError: the folder can't be read.
        ValueError: the model isn't whole. The text says which file is missing or damaged, and what
            to do.
    """
    names = frozenset(path.name for path in folder.iterdir())
    chosen = _chosen(names, _is_sound_in(folder))
    if not chosen and not _part_of("model", names) and (other := _other_format(names)):
        raise ValueError(other)
    try:
        _check_sets(chosen, {*names, *TOKENIZERS} if drafter else names)
    except ValueError as error:
        raise ValueError(f"{error}: {AGAIN}") from error
    if not drafter:
        _check_tokenizer(folder, names)
    for path in weight_files(folder, pictures=pictures):
        if (fault := _fault(path)) is not None:
            part = _part_of(path.name, names).removeprefix(", and ")
            beside = f" ({part})" if part else ""
            raise ValueError(f"{fault}{_or_delete(path.name, chosen)}{beside}")


def _or_delete(name: str, chosen: list[_Set]) -> str:
    """The further message for a faulty file if other weights beside the main ones are complete."""
    if len(chosen) == 1 or name not in chosen[0].names.values():
        return ""
    return f", or delete {name} if {chosen[1].label} is the whole model"


def _other_format(names: Collection[str]) -> str | None:
    """The message for a folder that has weights for other programs alone."""
    for suffix, what, else_ in _OTHERS:
        others = [name for name in names if name.endswith(suffix)]
        if name := min((name for name in others if name != "training_args.bin"), default=None):
            return (
                f"its weights ({name}) are {what}: take a conversion for MLX, which `bulkhead "
                f"search` finds{else_}"
            )
    return None


def _is_sound_in(folder: Path) -> Callable[[str], bool]:
    return lambda name: _fault(folder / name) is None


def _fault(path: Path) -> str | None:
    """What is wrong with a file of weights, and what to do; None: it is whole."""
    try:
        wanted, has = read_header(path).file_bytes, path.stat().st_size
    except OSError as error:
        return f"{path.name} can't be read ({error.strerror}): correct that, or {_PULL}"
    except ValueError as error:
        return str(error)
    if has < wanted:
        return f"{path.name} is cut off, with {has:,} of {wanted:,} bytes: {AGAIN}"
    if has > wanted:
        return (
            f"{path.name} is damaged: it has {has:,} bytes, and by its header {wanted:,}: {_PULL}"
        )
    return None


def _check_tokenizer(folder: Path, names: Collection[str]) -> None:
    """Raise ValueError if the tokenizer's files can't be read, as far as their ends tell. To parse
    them takes seconds.
    """
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if name in names:
            check_json(folder / name)
    _check_tekken(folder, names)


def _check_tekken(folder: Path, names: Collection[str]) -> None:
    """transformers reads the newer form of Mistral's file, which lists the special tokens."""
    alone = not any(name in names for name in TOKENIZERS if name != _TEKKEN)
    if alone and not _SPECIAL_TOKENS.search(read_file(folder / _TEKKEN)):
        raise ValueError(
            f"{_TEKKEN}, its only tokenizer, has no special_tokens, without which transformers "
            "doesn't read it: add tokenizer.json and tokenizer_config.json of another repository "
            "of the same model"
        )


def end_token_ids(folder: Path) -> list[int]:
    """The tokens that end an answer, by the first file that names some: generation_config.json, as
    in mlx-lm, config.json, or the configuration of its language model. The tokenizer may have
    another.

    Raises: OSError, ValueError: config.json can't be read.
    """
    config = read_table(folder / "config.json")
    nested = config.get("text_config")
    tables = [_table(folder / "generation_config.json"), config]
    if isinstance(nested, dict):
        tables.append(nested)
    for table in tables:
        given = table.get("eos_token_id")
        listed = given if isinstance(given, list) else [given]
        if ids := [token_id for token_id in listed if type(token_id) is int]:
            return ids
    return []


def longest_text_of(folder: Path) -> int | None:
    """The most tokens of a text that a vector model gets, by the files of PyLate, which bound
    queries and documents, or of sentence-transformers; None: they don't tell it.

    Raises: OSError.
    """
    marks = _table(folder / "config_sentence_transformers.json")
    whole = _table(folder / "sentence_bert_config.json").get("max_seq_length")
    bounds = [marks.get(name) for name in ("query_length", "document_length")]
    lengths = [length for length in bounds if type(length) is int and length > 0]
    return max(lengths, default=whole if type(whole) is int and whole > 0 else None)


class Templates(NamedTuple):
    """The chat templates by their names. `of_processor`: transformers' tokenizer doesn't read the
    file that has them.
    """

    by_name: dict[str, str]
    of_processor: bool = False

    @property
    def text(self) -> str:
        """The template of a chat without tools; empty: there is no template."""
        return self.by_name.get("default") or next(iter(self.by_name.values()), "")


def templates_of(folder: Path) -> Templates:
    """The chat templates of a model: those of the tokenizer, else those of the processor, which
    alone has one in some repositories of models that look at pictures.

    Raises: OSError.
    """
    more = sorted((folder / "additional_chat_templates").glob("[!.]*.jinja"))
    files = [("default", folder / "chat_template.jinja"), *((path.stem, path) for path in more)]
    templates = {name: _text(path) for name, path in files if path.is_file()}
    if templates:
        return Templates(templates)
    for name in ("tokenizer_config.json", "chat_template.json", "processor_config.json"):
        if templates := _named(_table(folder / name).get("chat_template")):
            return Templates(templates, of_processor=name != "tokenizer_config.json")
    return Templates({})


def _named(given: Any) -> dict[str, str]:
    if isinstance(given, list):
        tables = [table for table in given if isinstance(table, dict)]
        given = {table.get("name"): table.get("template") for table in tables}
    named = given if isinstance(given, dict) else {"default": given}
    return {str(name): text for name, text in named.items() if text and isinstance(text, str)}


def _text(path: Path) -> str:
    return read_file(path).decode("utf-8", "replace")


def _table(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty: there is none."""
    try:
        return read_table(path) if path.is_file() else {}
    except ValueError:
        return {}
