"""Are the files whole, do they agree with each other, with the architecture and with the hub?"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from mlx.utils import tree_flatten

from protocol.check import CheckFinding
from protocol.model_files import Header, read_header, read_table
from protocol.model_folder import INDEX, weight_files
from worker.errands.check.subject import Findings, Subject, Teller
from worker.load.faults import reason_of
from worker.load.files import as_opened, check_files
from worker.load.loading import classes_of, is_headless, load_text, needs_mlx_vlm
from worker.mlx_lm.models import read_model
from worker.system.errors import ModelError, one_sentence

TELL: Final = Teller("files")
_PULL: Final = "Pull the model again, or take another conversion."
_NAMED: Final = 3
# The share of the check's time in which files are hashed.
_HASHING: Final = 0.25
_CHUNK_BYTES: Final = 1 << 22
# The ends of answers, and settings of sampling and of the tokenizer.
_SMALL: Final = ("generation_config.json", "tokenizer_config.json")
_LAYER: Final = re.compile(r"\blayers?\.(\d+)\.")
# The lengths of the hub's digests: of large files SHA-256, of others git's SHA-1 of a blob.
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_GIT: Final = re.compile(r"[0-9a-f]{40}")


def check_the_files(subject: Subject) -> Findings:
    try:
        check_files(subject.folder)
    except ModelError as error:
        yield TELL.fault("The files of the model aren't whole.", error.reason, _PULL)
        return "The files can't be loaded."
    yield from _beside(subject.folder)
    headers = {path: read_header(path) for path in weight_files(subject.folder)}
    yield from _index(subject.folder, headers)
    yield from _doubled(headers)
    yield from _built(subject)
    hashed = 0
    wanted = 0
    for path, digest in _digests(subject.folder):
        wanted += 1
        if subject.left_s < subject.order.seconds * (1 - _HASHING):
            continue
        hashed += 1
        if _hash(path, digest) != digest:
            yield TELL.fault(
                f"{path.name} isn't the file that the hub has.",
                f"The hub's sum begins {digest[:12]}, and that of the file doesn't.",
                "Delete the file, and pull the model again.",
            )
    tensors = sum(len(header.tensors) for header in headers.values())
    sums = f"{hashed} of {wanted} files have the hub's sums" if wanted else "the hub left no sums"
    return f"{tensors:,} tensors in {len(headers)} files; {sums}."


def listed(names: Iterator[str] | list[str] | set[str]) -> str:
    """The first names of many, in order."""
    every = sorted(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return f"{', '.join(every[:_NAMED])}{more}"


def _beside(folder: Path) -> Iterator[CheckFinding]:
    """Small files that can't be read. A load does without them, and loses what they say."""
    for path in (folder / name for name in _SMALL if (folder / name).is_file()):
        try:
            read_table(path)
        except (OSError, ValueError) as error:
            yield TELL.fault(f"{path.name} can't be read.", f"{error}.", _PULL)


def _index(folder: Path, headers: dict[Path, Header]) -> Iterator[CheckFinding]:
    if not (folder / INDEX).is_file():
        return
    try:
        placed = read_table(folder / INDEX)["weight_map"]
        names = {str(name): str(file) for name, file in placed.items()}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        yield TELL.warning(
            f"{INDEX} can't be read.", one_sentence(error), "Delete it, or pull it again."
        )
        return
    has = {name: path.name for path, header in headers.items() for name in header.tensors}
    if not set(names.values()) & set(has.values()):
        yield TELL.remark(
            f"{INDEX} is of other files.",
            f"It names {listed(set(names.values()))}, which aren't here.",
            "Nothing reads it: delete it.",
            "conversion",
        )
        return
    if lost := {name for name in names if name not in has}:
        yield TELL.fault(
            "Tensors that the index names are in no file.",
            f"{len(lost)} of {len(names)} are missing: {listed(lost)}.",
            _PULL,
        )
    if moved := {name for name, file in names.items() if has.get(name, file) != file}:
        yield TELL.warning(
            "The index and the shards disagree on where tensors are.",
            f"{len(moved)} tensors are in another file: {listed(moved)}.",
            "Pull the shards and the index again, from one revision.",
        )


def _doubled(headers: dict[Path, Header]) -> Iterator[CheckFinding]:
    places: dict[str, list[str]] = defaultdict(list)
    for path, header in headers.items():
        for name in header.tensors:
            places[name].append(path.name)
    doubled = {name for name, files in places.items() if len(files) > 1}
    if doubled:
        first = min(doubled)
        yield TELL.fault(
            "Tensors are in several files, and only the last one counts.",
            f"{len(doubled)} tensors: {listed(doubled)}; the first is in "
            f"{' and '.join(places[first])}.",
            "Delete the files of the other conversion, or pull the model again.",
        )


class ShapeComparison(NamedTuple):
    """What an architecture wants, and what the files have: shapes by name."""

    wanted: dict[str, tuple[int, ...]]
    had: dict[str, tuple[int, ...]]


def compare(folder: Path) -> ShapeComparison:
    """Build the model of a folder as a load does, but compare in place of taking the weights."""
    compared = ShapeComparison({}, {})

    def classes(config: dict[str, Any]) -> tuple[type, Any]:
        model, arguments = classes_of(config, headless=is_headless(folder))

        class Comparing(model):  # type: ignore[misc, valid-type]  # mlx-lm is untyped
            def load_weights(self, weights: list[tuple[str, Any]], strict: bool = True) -> None:
                own = tree_flatten(self.parameters())
                compared.wanted.update({name: tuple(array.shape) for name, array in own})
                compared.had.update({name: tuple(array.shape) for name, array in weights})

        return Comparing, arguments

    with as_opened(folder) as opened:
        read_model(opened, classes)
    return compared


def _built(subject: Subject) -> Iterator[CheckFinding]:
    """What is wrong with the model that the files make, by the library that computes it."""
    findings = [] if needs_mlx_vlm(subject.config) else list(_architecture(subject))
    if findings or needs_mlx_vlm(subject.config):
        try:
            _, _, is_by_mlx_vlm = load_text(subject.folder)
            if is_by_mlx_vlm:
                return
        except ModelError as error:
            if not findings:
                reason = error.reason
                yield TELL.fault("config.json and the weights don't make a model.", reason, _PULL)
    yield from findings


def _architecture(subject: Subject) -> Iterator[CheckFinding]:
    try:
        wanted, had = compare(subject.folder)
    except Exception as error:
        # The code of an architecture fails in any way on a configuration that it doesn't expect.
        reason = reason_of(error, subject.folder, "The model can't be built")
        yield TELL.fault("config.json and the weights don't make a model.", reason, _PULL)
        return
    missing, extra = wanted.keys() - had.keys(), had.keys() - wanted.keys()
    yield from _count(subject, wanted, had)
    if missing == {"lm_head.weight"}:
        yield TELL.fault(
            "The files have no head, and config.json says that the embeddings aren't the head.",
            "tie_word_embeddings is false, and there is no lm_head.weight.",
            "Set tie_word_embeddings to true in config.json, or pull the shard that has the head.",
        )
    elif missing:
        yield TELL.fault(
            "Tensors that the architecture needs are missing.",
            f"{len(missing)} of {len(wanted)}: {listed(missing)}.",
            _PULL,
        )
    if extra:
        yield TELL.fault(
            "The files have tensors for which the architecture has no place.",
            f"{len(extra)} of {len(had)}: {listed(extra)}.",
            "Compare config.json with that of the original model: it tells the architecture.",
        )
    yield from _shapes(wanted, had)


def _count(
    subject: Subject, wanted: dict[str, tuple[int, ...]], had: dict[str, tuple[int, ...]]
) -> Iterator[CheckFinding]:
    layers = [
        len({match[1] for name in names if (match := _LAYER.search(name))})
        for names in (wanted, had)
    ]
    if layers[0] != layers[1]:
        yield TELL.fault(
            "config.json and the files have other numbers of layers.",
            f"config.json says {layers[0]} layers, and the files have {layers[1]}.",
            "Correct num_hidden_layers in config.json, or pull the model again.",
        )


def _shapes(
    wanted: dict[str, tuple[int, ...]], had: dict[str, tuple[int, ...]]
) -> Iterator[CheckFinding]:
    other = {name for name in wanted.keys() & had.keys() if wanted[name] != had[name]}
    swapped = set[tuple[str, str]]()
    for name in other:
        module = name.rsplit(".", 2)[0]
        for beside in other:
            if (
                name < beside
                and beside.rsplit(".", 2)[0] == module
                and name.rpartition(".")[2] == beside.rpartition(".")[2]
                and (wanted[name], wanted[beside]) == (had[beside], had[name])
            ):
                swapped.add((name, beside))
    for one, two in sorted(swapped)[:_NAMED]:
        yield TELL.fault(
            f"{one} and {two} are swapped.",
            f"Each has the shape of the other: {had[one]} and {had[two]}.",
            "Swap the two names in the conversion, and convert again.",
        )
    rest = other - {name for pair in swapped for name in pair}
    if rest:
        first = min(rest)
        yield TELL.fault(
            "Tensors have another shape than config.json asks for.",
            f"{len(rest)} tensors: {listed(rest)}; the first is {had[first]} in place of "
            f"{wanted[first]}.",
            "Compare config.json (sizes, heads, quantization) with the original's; else pull the "
            "model again.",
        )


def _digests(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files of a folder in the hub's cache, with the digests by which their blobs are named."""
    for path in sorted(folder.iterdir()):
        digest = path.resolve().name
        if path.is_symlink() and (_SHA256.fullmatch(digest) or _GIT.fullmatch(digest)):
            yield path, digest


def _hash(path: Path, digest: str) -> str:
    counting = hashlib.sha256()
    if not _SHA256.fullmatch(digest):
        counting = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            counting.update(chunk)
    return counting.hexdigest()
