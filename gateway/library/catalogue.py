"""What is on the disks, and what is known of it: who serves it, who needs it, when it was used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gateway.config.models import DEMO_FOLDER, find_folder
from gateway.config.read import Configuration
from gateway.library.description import describe
from gateway.library.search import Found, sizes
from gateway.system.nearest import nearest_model, suggestion


class Entry(Struct, frozen=True, kw_only=True):
    """A model on a disk; null is not known. `source` is a repository of the Hugging Face cache or a
    folder, `ids` what it is served under, and `problem` why it isn't, or can't be loaded.
    `size_bytes` would be free without it, `part_bytes` of them are of a pull that has not ended.
    `state` is that of the first of its ids. `configured` are the ids whose tables in the
    configuration name it.
    """

    source: str
    ids: tuple[str, ...]
    path: str
    size_bytes: int
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

    @property
    def name(self) -> str:
        return self.ids[0] if self.ids else self.source


class Holder(Struct, frozen=True):
    """A model of the gateway's, whether it has a process, and why it could not be served last."""

    state: str
    loaded: bool
    failure: str | None = None


def with_configured(found: list[Found], configuration: Configuration) -> list[Found]:
    """And those that only tables name; blocks."""
    known = {each.source for each in found}
    more = []
    for located in configuration.located.values():
        if located.path in known:
            continue
        known.add(located.path)
        try:
            folder = find_folder(located.path)
        except OSError:
            continue
        more.append(Found(located.path, str(folder), *sizes(folder), describe(folder)))
    return [*found, *more]


def catalogue(
    found: list[Found],
    configuration: Configuration,
    holders: Mapping[str, Holder],
    last_used_at: Mapping[str, float],
) -> list[Entry]:
    """By name. `holders` are by ids, `last_used_at` by sources."""
    entries = []
    for each in found:
        ids = tuple(k for k, v in configuration.located.items() if v.path == each.source)
        holder = holders.get(ids[0]) if ids else None
        described = each.description
        entries.append(
            Entry(
                source=each.source,
                ids=ids,
                path=each.path,
                size_bytes=each.size_bytes,
                part_bytes=each.part_bytes,
                architecture=described.architecture,
                quantization=described.quantization,
                context_tokens=described.context_tokens,
                has_template=described.has_template,
                abilities=described.abilities,
                problem=described.problem or (holder.failure if holder else None),
                state=None if holder is None else holder.state,
                last_used_at=last_used_at.get(each.source),
                configured=tuple(k for k in ids if k not in configuration.discovered),
            )
        )
    return sorted(entries, key=lambda each: (each.name.lower(), each.source))


def look_up(entries: list[Entry], name: str) -> Entry | None:
    """By id, repository or folder, or the last part of one that only one has."""
    for each in entries:
        if name in each.ids or name in (each.source, each.path):
            return each
    alike = [each for each in entries if each.source.rpartition("/")[2] == name]
    return alike[0] if len(alike) == 1 else None


def unknown(entries: list[Entry], name: str) -> str:
    """What is told whoever asks for a name that none has."""
    names = [each.name for each in entries]
    known = ", ".join(names) or "none"
    meant = suggestion(nearest_model(name, names))
    return f"There is no model {name!r} on the disks; there are: {known}.{meant}"


def objection(
    entry: Entry, configuration: Configuration, holders: Mapping[str, Holder], pulled: str | None
) -> str | None:
    """Why it can't be removed, in a sentence; None: it can. `pulled` is the pull that is at it."""
    if entry.source == str(DEMO_FOLDER):
        return "The demo model is a part of Bulkhead."
    if pulled is not None:
        return f"{entry.source} is being pulled: cancel that first (pull {pulled})."
    loaded = [each for each in entry.ids if each in holders and holders[each].loaded]
    if loaded:
        return f"{loaded[0]} is loaded: run `bulkhead unload {loaded[0]}` first."
    needed = [
        model_id
        for model_id, at in configuration.located.items()
        if _uses(at.draft_model, entry) or _uses(at.adapter, entry)
    ]
    if needed:
        return f"{needed[0]} needs it too, as a draft model or adapter."
    if entry.configured:
        places = [str(configuration.source(("models", each, "path"))) for each in entry.configured]
        return (
            f"The configuration names it, as {', '.join(entry.configured)} ({', '.join(places)}): "
            "take that out, and reload."
        )
    return None


def _uses(used: str | None, entry: Entry) -> bool:
    return used is not None and Path(used).is_relative_to(entry.path)
