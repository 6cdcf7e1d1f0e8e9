"""The gateway's search on the hub, beside the event loop."""

from __future__ import annotations

import functools
import math
import time
from typing import Final

from gateway.library.findings import Findings, Room, found_for, well_known
from gateway.library.library import Library
from gateway.library.search_process import (
    DEADLINE_S,
    SearchError,
    SearchJob,
    find_candidates,
    words_of,
)
from gateway.models.fleet import Fleet
from gateway.system.lane import HangsError, Lane
from gateway.system.refusal import Refusal

_LONGEST: Final = 200
# Searches run one after the other, so a search may wait for one that gets no answer.
_ANSWER_S: Final = 2 * DEADLINE_S + 10.0
_RETRY_AFTER_S: Final = 30


class HubSearch:
    def __init__(self, fleet: Fleet, library: Library) -> None:
        self._fleet = fleet
        self._library = library
        self._lane = Lane("search")

    async def find(self, text: str) -> Findings:
        """The repositories for a text, or the well-known models if it is empty.

        Raises:
            Refusal: the text is too long, or the hub can't be searched.
        """
        if len(text) > _LONGEST or not text.isprintable():
            raise Refusal(
                "invalid_request_error",
                f"q: expected at most {_LONGEST} characters of a model's name.",
                param="q",
            )
        words = words_of(text)
        if not words:
            return well_known(self._room(), await self._served())
        hub = self._fleet.settings.hub
        search = functools.partial(find_candidates, SearchJob(words, hub.endpoint, hub.at))
        try:
            candidates = await self._lane.run(search, _ANSWER_S, "the hub")
        except SearchError as error:
            retry_after_s = None if error.retry_after_s is None else math.ceil(error.retry_after_s)
            raise Refusal("hub_unavailable", error.message, retry_after_s=retry_after_s) from error
        except HangsError as error:
            raise Refusal(
                "hub_unavailable", f"{error}: try again later.", retry_after_s=_RETRY_AFTER_S
            ) from error
        except OSError as error:
            raise Refusal(
                "overloaded",
                f"No process can be started for the search: {error.strerror or error}.",
                retry_after_s=_RETRY_AFTER_S,
            ) from error
        return found_for(words, candidates, self._room(), await self._served(), time.time())

    def _room(self) -> Room:
        ledger = self._fleet.scheduler.ledger
        # Loans that nothing needs are called back for another model, so they count as free.
        loose_bytes = sum(each.loose_bytes for each in ledger.allocations)
        return Room(
            ledger.free_bytes + loose_bytes, ledger.possible_bytes, self._fleet.process_bytes
        )

    async def _served(self) -> dict[str, str]:
        try:
            entries = await self._library.entries()
        except Refusal:
            # The disks are slow; the results are of use without the ids.
            return {}
        return {each.source: each.ids[0] for each in entries if each.ids and each.problem is None}
