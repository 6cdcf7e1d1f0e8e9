"""The names of the models that were found on disks and have no table in the configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct

# More are remembered only if that many models are there.
_MOST_REMEMBERED: Final = 10_000


class NameClaim(Struct, frozen=True):
    """A name that a model may have by one of its homes: a repository of the Hugging Face cache, or
    the path of a folder or link. `longer` is the name with its owner or folder.
    """

    home: str
    name: str
    longer: str


class Claimant(Struct, frozen=True):
    """A model by its source, and its claims, the best first. It has several claims if links lead to
    it. `folder` is where its files are, without links.
    """

    source: str
    claims: tuple[NameClaim, ...]
    folder: str = ""


class Names(Struct, frozen=True):
    """`given` maps the source of each model that has a name to its names. The first is its id, the
    others are aliases. `holders` maps all names, also those of models that are away, to the homes
    by which models have them.
    """

    given: dict[str, list[str]]
    holders: dict[str, str]


def give_names(
    holders: Mapping[str, str], taken: Collection[str], claimants: Sequence[Claimant]
) -> Names:
    """Name the models. A model keeps the names that it has in `holders`, and its id stays its id.
    A new model gets the first free name of its claims as its id. Further plain names become aliases
    if they are free. The configuration has the `taken` names for itself.
    """
    claims = {claim.home: (model, claim) for model in claimants for claim in model.claims}
    given: dict[str, list[str]] = {model.source: [] for model in claimants}
    for name, home in holders.items():
        if home in claims and name not in taken:
            model, claim = claims[home]
            if name in (claim.name, claim.longer):
                given[model.source].append(name)
    now = dict(holders)

    def is_free(name: str) -> bool:
        return name not in now and name not in taken and name.isprintable()

    def give(model: Claimant, name: str, home: str) -> None:
        now[name] = home
        given[model.source].append(name)

    in_order = sorted(claimants, key=lambda model: (model.claims[0].name, model.source))
    for model in in_order:
        wanted = [
            (name, claim.home) for claim in model.claims for name in (claim.name, claim.longer)
        ]
        if not given[model.source]:
            for name, home in wanted:
                if is_free(name):
                    give(model, name, home)
                    break
    # Every model has its id first: an alias takes none away.
    for model in in_order:
        for claim in model.claims:
            if is_free(claim.name):
                give(model, claim.name, claim.home)
    return Names({source: names for source, names in given.items() if names}, now)


def rehomed(
    holders: Mapping[str, str], folders: Mapping[str, str], claimants: Sequence[Claimant]
) -> dict[str, str]:
    """The holders, without links that are gone. A model that a link led to keeps its name where it
    is found now. `folders` maps homes to the folders that they led to.
    """
    present = {claim.home for model in claimants for claim in model.claims}
    now = {
        (model.folder, name): claim.home
        for model in claimants
        for claim in reversed(model.claims)
        for name in (claim.name, claim.longer)
    }
    return {
        name: home if home in present else now.get((folders.get(home, home), name), home)
        for name, home in holders.items()
    }


def remembered(
    holders: Mapping[str, str], present: Collection[str], most: int = _MOST_REMEMBERED
) -> dict[str, str]:
    """The holders to remember: at most so many, without the oldest whose homes aren't `present`."""
    absent = [name for name, home in holders.items() if home not in present]
    forgotten = set(absent[: max(0, len(holders) - most)])
    return {name: home for name, home in holders.items() if name not in forgotten}


def news(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Sentences about names that have another holder than before, and about models that have got a
    longer name, because another model has the plain one.
    """
    sentences = []
    for name, home in now.items():
        plain = name.rpartition("/")[2]
        if (former := before.get(name, home)) != home:
            sentences.append(f"The name {name} means {home} now, as {former} is gone.")
        elif name not in before and (holder := now.get(plain, home)) != home:
            sentences.append(f"{home} is served as {name}, as {holder} has the name {plain}.")
    return sentences
