"""The models on the disks: their ids, their states, their last use, and their removal."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from gateway.config.model_folders import DEMO_FOLDER, find_folder
from gateway.config.read import Configuration
from gateway.library.description import describe
from gateway.library.folders import FoundModel, sizes
from gateway.models.check_reports import CheckStatus
from gateway.system.notation import nearest_model, suggestion


class ModelOnDisk(Struct, frozen=True, kw_only=True):
    """A model on a disk; null means not known. `source` is a repository of the Hugging Face cache
    or a folder. `ids` are those that it is served under, and `problem` is why it isn't served, or
    can't be loaded. Its removal would free `freed_bytes`; `part_bytes` of these are of a pull that
    has not ended. `path` is what is removed, `folder` where the files to load are, without links.
    `state` is that of the first of its ids. `configured` are the ids whose tables in the
    configuration name it. `name_holder` is the model that had its plain name before it. `system`
    and `defaults` are the system prompts and parameters that are configured, by ids. `check` is the
    result of its last check.
    """

    source: str
    ids: tuple[str, ...]
    aliases: tuple[str, ...]
    path: str
    folder: str
    size_bytes: int
    freed_bytes: int
    part_bytes: int
    architecture: str | None
    quantization: str | None
    context_tokens: int | None
    has_template: bool
    abilities: tuple[str, ...]
    problem: str | None
    state: str | None
    last_used_at: float | None
    configured: tuple[str, ...]
    name_holder: str | None = msgspec.field(name="name_kept_by")
    system: dict[str, str] = {}
    defaults: dict[str, str] = {}
    check: CheckStatus | None = None

    @property
    def name(self) -> str:
        return self.ids[0] if self.ids else self.source


class EntryList(Struct):
    models: list[ModelOnDisk]


class Removed(Struct):
    """The source of the model, and the bytes that its removal frees."""

    source: str
    reclaimed_bytes: int


class ServedModel(Struct, frozen=True):
    """The state of a served model. `loaded`: the model has a process. `failure` says why the model
    can't be served; None: nothing is wrong.
    """

    state: str
    loaded: bool
    failure: str | None = None


class Used(Struct, frozen=True):
    """The last use of each model. `at` maps the sources of models to Unix times in seconds."""

    at: dict[str, float]


def with_configured(
    found_models: list[FoundModel], configuration: Configuration
) -> list[FoundModel]:
    """The found models, and further models that tables of the configuration name. Blocks."""
    known = {model.source for model in found_models} | {
        found_model.folder for found_model in found_models
    }
    more = {model.folder: model for model in found_models}
    for model_id, located in configuration.located.items():
        if located.path in known or configuration.settings.models[model_id].command:
            continue
        known.add(located.path)
        try:
            path = find_folder(located.path)
        except OSError:
            continue
        folder = os.path.realpath(path)
        if folder in more:
            # A link leads to the repository that the table names.
            more[folder] = msgspec.structs.replace(more[folder], source=located.path)
            continue
        more[folder] = found_at(located.path, path)
    return list(more.values())


def found_at(source: str, path: Path) -> FoundModel:
    """The model of a source in the folder `path`. Blocks."""
    measured = sizes(path)
    return FoundModel(
        source=source,
        folder=os.path.realpath(path),
        path=str(path),
        size_bytes=measured.all_bytes,
        freed_bytes=measured.freed_bytes,
        part_bytes=measured.part_bytes,
        description=describe(path),
    )


def catalogue(
    found_models: list[FoundModel],
    configuration: Configuration,
    served: Mapping[str, ServedModel],
    last_used_at: Mapping[str, float],
) -> list[ModelOnDisk]:
    """All models, sorted by name. `served` is by ids of models, `last_used_at` by sources."""
    entries = []
    for found_model in found_models:
        places = (found_model.source, found_model.folder)
        ids = tuple(
            model_id
            for model_id, located in configuration.located.items()
            if located.path in places
        )
        tables = {model_id: configuration.settings.models[model_id] for model_id in ids}
        first = served.get(ids[0]) if ids else None
        described = found_model.description
        entries.append(
            ModelOnDisk(
                source=found_model.source,
                ids=ids,
                aliases=tuple(alias for model in tables.values() for alias in model.aliases),
                path=found_model.path,
                folder=found_model.folder,
                size_bytes=found_model.size_bytes,
                freed_bytes=found_model.freed_bytes,
                part_bytes=found_model.part_bytes,
                architecture=described.architecture,
                quantization=described.quantization,
                context_tokens=described.context_tokens,
                has_template=described.has_template,
                abilities=described.abilities,
                problem=described.problem or (first.failure if first else None),
                state=None if first is None else first.state,
                last_used_at=last_used_at.get(found_model.source),
                configured=tuple(
                    model_id for model_id in ids if model_id not in configuration.discovered
                ),
                name_holder=_name_holder(found_model, ids, configuration),
                system={
                    model_id: model.system for model_id, model in tables.items() if model.system
                },
                defaults={
                    model_id: str(model.defaults)
                    for model_id, model in tables.items()
                    if model.defaults.given
                },
            )
        )
    return sorted(entries, key=lambda on_disk: (on_disk.name.lower(), on_disk.source))


def _name_holder(
    model: FoundModel, ids: tuple[str, ...], configuration: Configuration
) -> str | None:
    if not ids or ids[0] not in configuration.discovered:
        return None
    holder = configuration.names.get(model.claims[0].name)
    return None if holder in {claim.home for claim in model.claims} else holder


def look_up(entries: list[ModelOnDisk], name: str) -> ModelOnDisk | None:
    """The model with this id, alias, repository or folder. Otherwise the only model with a source
    whose last part is `name`. None: there is no such model.
    """
    for on_disk in entries:
        if name in (*on_disk.ids, *on_disk.aliases, on_disk.source, on_disk.path, on_disk.folder):
            return on_disk
    alike = [entry for entry in entries if entry.source.rpartition("/")[2] == name]
    return alike[0] if len(alike) == 1 else None


def unknown(entries: list[ModelOnDisk], name: str) -> str:
    """The message that no model has this name."""
    names = [on_disk.name for on_disk in entries]
    known = ", ".join(names) or "none"
    meant = suggestion(nearest_model(name, names))
    return f"There is no model {name!r} on the disks; there are: {known}.{meant}"


def objection(
    entry: ModelOnDisk,
    configuration: Configuration,
    served: Mapping[str, ServedModel],
    pulled: str | None,
) -> str | None:
    """Why a model can't be removed, in a sentence; None: it can be removed. `pulled` is the id of
    a running pull of the model, if there is one.
    """
    if entry.source == str(DEMO_FOLDER):
        return "The demo model is a part of Bulkhead."
    if pulled is not None:
        return f"{entry.source} is being pulled: cancel that first (pull {pulled})."
    loaded = [model_id for model_id in entry.ids if model_id in served and served[model_id].loaded]
    if loaded:
        return f"{loaded[0]} is loaded: run `bulkhead unload {loaded[0]}` first."
    needed = [
        model_id
        for model_id, located in configuration.located.items()
        if _uses(located.draft_model, entry) or _uses(located.adapter, entry)
    ]
    if needed:
        return f"{needed[0]} needs it too, as a draft model or adapter."
    if entry.configured:
        places = [
            str(configuration.source(("models", model_id, "path"))) for model_id in entry.configured
        ]
        return (
            f"The configuration names it, as {', '.join(entry.configured)} ({', '.join(places)}): "
            "take that out, and reload."
        )
    return None


def _uses(used: str | None, entry: ModelOnDisk) -> bool:
    return used is not None and Path(used).is_relative_to(entry.path)


_ASIDE: Final = ".removing--"


def check_own_folder(entry: ModelOnDisk) -> None:
    """Raises: ValueError: the model's folder can't be removed, as it is a link, or contains another
    model; the text is a sentence. Blocks.
    """
    folder = Path(entry.path)
    if folder.is_symlink() and os.path.exists(folder):  # noqa: PTH110 - Path.exists may raise.
        raise ValueError(f"{folder} is a link to a folder elsewhere: remove that, or the link.")
    for parent, _, names in os.walk(folder):
        if Path(parent) != folder and "config.json" in names and entry.source.startswith("/"):
            raise ValueError(f"{folder} has another model in it, {parent}: remove it by hand.")


def put_aside(entry: ModelOnDisk) -> Path:
    """Rename the model's folder, so that no search finds it while its files are removed. Return the
    renamed folder. Blocks.

    Raises:
        ValueError: as `check_own_folder` does.
        OSError: the folder can't be renamed.
    """
    check_own_folder(entry)
    folder = Path(entry.path)
    # A hash, as the folder's own name may leave no room for a prefix.
    aside = folder.with_name(_ASIDE + hashlib.sha256(os.fsencode(folder.name)).hexdigest()[:16])
    # A removal that was interrupted may have left this folder.
    _delete(aside)
    folder.rename(aside)
    return aside


def remove(aside: Path, entry: ModelOnDisk) -> None:
    """Remove the files of a model that `put_aside` has renamed. Blocks for as long as the disk
    takes. Raises OSError.
    """
    _delete(aside)
    if not entry.source.startswith("/"):
        # The locks that huggingface_hub has for the model's files.
        locks = aside.parent / ".locks" / Path(entry.path).name
        shutil.rmtree(locks, ignore_errors=True)
        with contextlib.suppress(OSError):
            locks.parent.rmdir()


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        # The path may be a link or a file.
        path.unlink(missing_ok=True)
