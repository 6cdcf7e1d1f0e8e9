"""What is on the disks, and what of it is served without a table of its own."""

from __future__ import annotations

import functools
import logging
from typing import Final

import msgspec

from gateway.config.models import check_allowed
from gateway.config.read import Configuration, Located
from gateway.config.settings import ModelSettings, Settings
from gateway.library.search import Found, search
from gateway.system.denied import denied
from gateway.system.inquiries import Inquiries

logger = logging.getLogger(__name__)

# For all places together: a disk that sleeps takes seconds, one that has died takes for ever.
_ANSWER_S: Final = 10.0


class Finder:
    """Asks all places at once."""

    def __init__(self) -> None:
        self._inquiries: Inquiries[str, list[Found]] = Inquiries()
        self._known: dict[str, list[Found]] = {}
        self._said: set[str] = set()

    def find(self, settings: Settings) -> list[Found]:
        """Everything there is, whole or not; blocks. Of a place that can't be read it is what was
        there before: nobody's model is to end for a share that is away for a moment.
        """
        places = settings.discovery.discover
        for place in places:
            self._inquiries.ask(place, functools.partial(search, place), f"discover {place}")
        found: dict[str, Found] = {}
        for place in places:
            for each in self._answer(place):
                found.setdefault(each.source, each)
        return list(found.values())

    def with_found(self, configuration: Configuration) -> Configuration:
        """With the models that are whole and have no table; blocks. What was found before and isn't
        there any more is left out.
        """
        settings = configuration.settings
        own = {
            model_id: model
            for model_id, model in settings.models.items()
            if model_id not in configuration.discovered
        }
        located = {model_id: configuration.located[model_id] for model_id in own}
        offered = offered_ids(own, located, settings, self.find(settings))
        return msgspec.structs.replace(
            configuration,
            settings=msgspec.structs.replace(
                settings,
                models=own | {name: ModelSettings(path=each) for name, each in offered.items()},
            ),
            located=located | {name: Located(each) for name, each in offered.items()},
            discovered=frozenset(offered),
        )

    def _answer(self, place: str) -> list[Found]:
        try:
            found = self._inquiries.answer(place, _ANSWER_S)
        except TimeoutError:
            self._complain(place, f"it did not answer within {_ANSWER_S:g} s")
            return self._known.get(place, [])
        except OSError as error:
            self._complain(place, denied(error) or error.strerror or str(error))
            return self._known.get(place, [])
        self._said.discard(place)
        self._known[place] = found
        return found

    def _complain(self, place: str, why: str) -> None:
        if place not in self._said:
            logger.warning("No models are looked for in %s: %s", place, why)
        self._said.add(place)


def offered_ids(
    own: dict[str, ModelSettings],
    located: dict[str, Located],
    settings: Settings,
    found: list[Found],
) -> dict[str, str]:
    """Sources by the ids that they are offered under: the name, or with its owner or folder if
    somebody else has that.
    """
    taken = {*own, *(alias for each in own.values() for alias in each.aliases)}
    served = {each.path for each in located.values()}
    offered: dict[str, str] = {}
    for each in sorted(found, key=lambda each: (each.name, each.source)):
        if each.description.problem is not None or each.source in served:
            continue
        if settings.gateway.allow and not _is_allowed(each.source, settings.gateway.allow):
            continue
        longer = "/".join(each.source.split("/")[-2:])
        for name in (each.name, longer):
            if name not in taken and name.isprintable():
                taken.add(name)
                offered[name] = each.source
                break
    return offered


def _is_allowed(source: str, allowed: tuple[str, ...]) -> bool:
    try:
        check_allowed(source, allowed)
    except ValueError:
        return False
    return True
