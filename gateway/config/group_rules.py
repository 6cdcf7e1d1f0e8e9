"""What must hold between groups of models, and between groups and models.

Each rule yields the place of a mistake and what is wrong there.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.keys import GROUPS
from gateway.config.kinds import toml_text
from gateway.config.locations import Place
from gateway.config.rules import Complaint
from gateway.config.settings import GroupSettings, Settings
from gateway.system.notation import nearest

_KINDS = ("together", "swap", "reserve")


def group_complaints(settings: Settings) -> Iterator[Complaint]:
    """What is wrong in groups whose values are right one by one."""
    for name, group in settings.groups.items():
        yield from _members(name, group, settings)
        yield from _kinds(name, group, settings)
    yield from _overlaps(settings)


def _members(name: str, group: GroupSettings, settings: Settings) -> Iterator[Complaint]:
    seen: set[str] = set()
    aliases = {
        alias: model_id for model_id, model in settings.models.items() for alias in model.aliases
    }
    for index, model_id in enumerate(group.models):
        place = (GROUPS, name, "models", index)
        if model_id in seen:
            yield place, f"{toml_text(model_id)} is in it already"
        elif model_id in aliases:
            yield (
                place,
                f"{toml_text(model_id)} is an alias, of the id {toml_text(aliases[model_id])}",
            )
        elif model_id not in settings.models:
            meant = nearest(model_id, settings.models)
            hint = f"did you mean {toml_text(meant)}?" if meant else "a member needs one"
            yield place, f"no model {toml_text(model_id)} has a table of its own; {hint}"
        seen.add(model_id)
    if len(seen) < 2:
        yield _at(name), "a group has two models at least"


def _kinds(name: str, group: GroupSettings, settings: Settings) -> Iterator[Complaint]:
    if not any(getattr(group, kind) for kind in _KINDS):
        yield (
            (GROUPS, name),
            "it says nothing of its models: set together, swap or reserve",
        )
    if group.together and group.swap:
        yield (
            (GROUPS, name, "swap"),
            "models that are loaded together can't exclude each other: together or swap is wrong",
        )
    for index, model_id in enumerate(group.models):
        model = settings.models.get(model_id)
        if group.swap and model is not None and model.pinned:
            yield (
                (GROUPS, name, "models", index),
                f"{toml_text(model_id)} is pinned, so it would never make place for the others: "
                "unpin it, or take it out",
            )


def _overlaps(settings: Settings) -> Iterator[Complaint]:
    """A model has one company and one room; whom it excludes may be in several groups."""
    names = list(settings.groups)
    for number, name in enumerate(names):
        group = settings.groups[name]
        for other_name in names[:number]:
            other = settings.groups[other_name]
            shared = [each for each in group.models if each in other.models]
            for kind in ("together", "reserve"):
                if shared and getattr(group, kind) and getattr(other, kind):
                    yield (
                        _at(name),
                        f"{toml_text(shared[0])} is in {toml_text(other_name)} too, and a model is "
                        f"in one group with {kind} at most: make one of the two",
                    )
            if len(shared) > 1 and (
                (group.together and other.swap) or (group.swap and other.together)
            ):
                yield (
                    _at(name),
                    f"{toml_text(shared[0])} and {toml_text(shared[1])} are loaded together by one "
                    f"of {toml_text(other_name)} and {toml_text(name)}, and exclude each other by "
                    "the other",
                )


def _at(name: str) -> Place:
    return (GROUPS, name, "models")
