"""The memory of the last requests: what goes in when a request comes, and the facts from the events
when somebody asks why it began late.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from gateway.access.keys import ApiKeys
from gateway.http.generation.model_call import ModelCall
from gateway.models.fleet import Fleet
from gateway.requests.request import Request
from gateway.requests.trace import Trace
from gateway.system.refusal import Refusal
from gateway.why.answer import Why, why
from gateway.why.compare import PromptComparison, compare
from gateway.why.facts import facts_of
from gateway.why.record import Facts, RequestRecord
from gateway.why.records import Records
from gateway.why.sections import sketch
from protocol.requests import Generate, TokenPrompt

_EVENTS: Final = 1000


class RequestMemory:
    """Remembers the prompts of the last requests, unless `prompt_cache.explain` is off. Only their
    own callers' requests are compared with each other. All is in memory, and ends with the gateway,
    with an upgrade too, or with the key.
    """

    def __init__(self, fleet: Fleet, keys: ApiKeys) -> None:
        self._fleet = fleet
        self._records = Records()
        keys.on_revoked = self._records.forget

    async def remember(
        self, call: ModelCall, request: Request, salt: str, answer: str = ""
    ) -> RequestRecord | None:
        """Remember a request before it is sent. `answer` is the id of its answer, if that has
        another id. None: requests are not remembered, or this one is too large.

        Raises:
            Refusal: no thread is free in time.
        """
        task = request.task
        if not self._fleet.settings.prompt_cache.explain:
            self._records.forget()
            return None
        if not isinstance(task, Generate) or task.counts:
            return None
        owner = call.caller.owner
        at = time.time()
        drawn = await call.beside_the_loop(partial(sketch, task, self._records.known(owner)))
        request.trace = Trace(request.timing)
        if isinstance(task.prompt, TokenPrompt):
            request.trace.rendered(task.prompt.token_ids)
        record = RequestRecord(
            id=request.id,
            answer=answer,
            model=call.model.id,
            owner=owner,
            key=call.caller.name,
            salt=salt,
            at=at,
            sketch=drawn,
            trace=request.trace,
        )
        return record if self._records.add(record) else None

    def cleared(self, model: str | None) -> None:
        """Note that the cached prompts of a model were cleared; None: of all models."""
        self._records.cleared(model, time.time())

    def why(self, name: str) -> Why:
        """Why the request with this id began late, or the request whose answer has this id.

        Raises:
            Refusal: the request isn't remembered.
        """
        if not self._fleet.settings.prompt_cache.explain:
            raise Refusal(
                "not_found",
                "No request is remembered: set prompt_cache.explain to true, and reload.",
            )
        record = self._records.find(name)
        if record is None:
            raise Refusal(
                "not_found",
                f"No request {name[:128]!r} is remembered: only the last requests for text since "
                "the gateway's start are. `bulkhead why` without an id lists them.",
            )
        return why(record, self._records, self._facts(record.model), time.time())

    def compare(self, record: RequestRecord, name: str) -> PromptComparison | None:
        """Compare a request with an earlier one of the same caller, by the id of its answer. None:
        that one isn't remembered.
        """
        before = self._records.find(name, record.owner)
        return None if before is None else compare(record, before)

    def _facts(self, model_id: str) -> Facts:
        events = self._fleet.events.recent(_EVENTS, model_id)
        return facts_of(events, self._records.clears(model_id), self._off(model_id))

    def _off(self, model_id: str) -> str:
        """Why the model's prompt cache is off; empty if it isn't."""
        proofs = (
            supervisor.cache_proof.state
            for supervisor in self._fleet.roster.everyone
            if supervisor.model.id == model_id
        )
        return next((proof.off for proof in proofs if proof is not None), "")
