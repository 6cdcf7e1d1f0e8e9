"""The requests of one model on their way through its workers: queued, sent, parked, resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from gateway.requests import refusals
from gateway.requests.fair_shares import opaque
from gateway.requests.progress import ImplausibleError, ModelChangedError, Passage
from gateway.requests.queue import Quarantine, QueueFullError, RequestQueue
from gateway.requests.request import Request
from gateway.requests.use import ModelMeter, PhaseKind, Use
from gateway.system.clock import Presence
from gateway.system.events import EventLog, Kind
from gateway.system.refusal import Refusal
from protocol.answers import Costs, Delta, Embedded, Output, Rendered, RequestFailed, Text, Usage
from protocol.life import Ability, PromptCaching
from protocol.message_base import Message
from protocol.messages import ProtocolError
from protocol.requests import Cancel, Embed, SamplingDefaults


class WorkerConnection(Struct, frozen=True):
    """The worker that gets the requests. `send` raises ProtocolError for a message too large. If
    the worker guards the server of a command, requests are passed on to its `address` instead.
    `incarnation` is the worker's number. `prompts` says how it caches prompts.
    """

    send: Callable[[Message], None]
    fingerprint: str
    context_tokens: int
    abilities: tuple[Ability, ...] = ("text",)
    sampling: SamplingDefaults = SamplingDefaults()
    address: str = ""
    incarnation: int = 0
    prompts: PromptCaching = PromptCaching()


class ProtocolBreachError(Exception):
    """A worker's message about a request can't be right; the text says why."""


class QueueBounds(Struct, frozen=True):
    """The bounds of a queue: `depth` requests may wait, and `concurrency` requests may run.
    Requests without a priority of their own have `priority`.
    """

    depth: int
    concurrency: int
    priority: int


class QueueOwner(Protocol):
    """The model that the requests are for."""

    @property
    def load_s(self) -> int:
        """The seconds that a load takes, for clients that are to try again after the load."""

    @property
    def short_of_memory(self) -> bool:
        """Whether requests wait for memory in the model's worker."""

    def notify(self) -> None:
        """The numbers of requests have changed."""

    def describe(self) -> str:
        """The model's state, as the end of a sentence about the model."""


class Successor(Protocol):
    """The next gateway, which has the worker now, or is about to get it. The calls may reach that
    gateway later, in their order.
    """

    def submit(self, model_id: str, request: Request) -> None: ...

    def cancel(self, request: Request) -> None: ...


class Traffic:
    """Sends a model's requests to its worker, and keeps them while there is no connection.

    `prompt_tokens` counts the tokens of all answered prompts. `cached_tokens` of them were found in
    the cache. Everything runs on the event loop.
    """

    def __init__(
        self, model_id: str, bounds: QueueBounds, owner: QueueOwner, events: EventLog
    ) -> None:
        self.use = Use()
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.meter = ModelMeter()
        self._model_id = model_id
        self.queue = RequestQueue(bounds.depth, bounds.concurrency, bounds.priority)
        self._owner = owner
        self._quarantine = Quarantine()
        self._events = events
        self._connection: WorkerConnection | None = None
        self._draining = False
        self._successor: Successor | None = None
        self._loop = asyncio.get_running_loop()
        self._presence = Presence(self._loop.time())

    @property
    def oldest_waiting_s(self) -> float | None:
        """Seconds since the oldest waiting request arrived."""
        return self._age_s(self.queue.oldest_waiting_at)

    @property
    def oldest_running_s(self) -> float | None:
        """Seconds since the oldest running request arrived; its wait counts."""
        return self._age_s(self.queue.oldest_running_at)

    @property
    def busy(self) -> bool:
        return self.queue.waiting + self.queue.running > 0

    @property
    def abilities(self) -> tuple[Ability, ...] | None:
        """The model's abilities; None: no worker takes requests for it now."""
        if self._connection is None or self._draining:
            return None
        return self._connection.abilities

    # From clients

    def submit(self, request: Request) -> None:
        """Take a request in. The next `dispatch` sends it, if it may run. Probes don't count as
        use.

        Raises:
            Refusal: the queue is full, this request has killed workers, or the model lacks the
                ability that it asks for.
        """
        if (refusal := self._inability(request)) is not None:
            raise self._turned_away(request, refusal)
        if self._successor is not None:
            self._successor.submit(self._model_id, request)
            return
        left_s = self._quarantine.remaining_s(request.task, self._loop.time())
        if left_s is not None:
            raise self._turned_away(request, refusals.quarantined(self._model_id, left_s))
        full = refusals.queue_full(self._model_id, self.queue.depth, self._owner.load_s)
        try:
            leaving = self.queue.add(request)
        except QueueFullError:
            raise self._turned_away(request, full) from None
        if leaving is not None:
            self._refuse(leaving, full)
        request.timing.enter(self._wait, self._loop.time())
        self._note_use(request)

    def cancel(self, request: Request) -> None:
        """Drop a request whose client is gone, or that was refused."""
        if self._successor is not None:
            self._successor.cancel(request)
            return
        if self.queue.remove(request):
            if isinstance(request.task, Passage):
                self._charge_passage(request)
            else:
                self._send(Cancel(request_id=request.progress.wire_id))
            self.dispatch()
        self._owner.notify()

    def end_passage(self, request: Request, usage: Usage | None) -> None:
        """End a passage. `usage` is what the server has reported; None: it reported nothing."""
        if usage is not None:
            self.meter.prompt_tokens += usage.prompt_tokens
            self.meter.generated_tokens += usage.completion_tokens
        self.cancel(request)
        self._note_use(request)

    def tick(self, now: float, remind_after_s: float) -> None:
        """Refuse overdue requests, and remind the readers of all other requests that time passes.
        While the machine sleeps, no deadline comes nearer.
        """
        self.queue.put_off(self._presence.absent_s(now))
        for request in self.queue.take_overdue(now):
            self._refuse(request, self._too_late(request))
        # Running requests that wait for memory in the worker can be overdue as well.
        if self._owner.short_of_memory:
            for request in self.queue.overdue_unbegun(now):
                self._refuse(request, self._too_late(request))
                self.cancel(request)
        for request in self.queue:
            request.remind(now, remind_after_s)
        # A newcomer may have waited long enough for a running answer's place.
        self.dispatch()

    # From the worker

    def output(self, message: Output) -> bool:
        """Returns whether any delta is for a running request. Raises: ProtocolBreachError."""
        useful = False
        now = self._loop.time()
        for delta in message.deltas:
            request = self.queue.find_running(delta.request_id)
            if request is None:
                continue  # Cancelled or parked meanwhile.
            useful = True
            progress = request.progress
            if not progress.rendered:
                raise ProtocolBreachError("it sent output before the prompt's tokens")
            if request.deliver(delta, now):
                request.tell(now)
            if delta.token_ids:
                self.queue.await_measurement(request)
            if delta.token_ids and not request.terms.probe:
                if request.prompt_counts and request.timing.last_token_at is None:
                    self.meter.prompt_tokens += progress.prompt_tokens
                    self.queue.shares.count(progress.prompt_tokens)
                self.queue.shares.count(len(delta.token_ids))
                self.meter.tokens(request.timing, len(delta.token_ids), now)
                self.meter.guesses += delta.guesses
            self._check_length(len(progress.delivered))
            if progress.is_too_long:
                tokens = len(progress.delivered)
                raise ProtocolBreachError(f"it sent a longer text than {tokens} tokens have")
            if request.over:
                self._count(request)
                self._count_loop(delta)
                self._finished(request)
            elif self.queue.is_cleared(request):
                if self.queue.release_suspect(request):
                    self._send(Cancel(request_id=progress.wire_id))
                    request.park(now)
                    self._note_park(request)
                self.dispatch()
        return useful

    def embedded(self, message: Embedded) -> bool:
        """Returns whether the vectors are for a running request. Raises: ProtocolBreachError."""
        request = self.queue.find_running(message.request_id)
        if request is None:
            return False
        try:
            request.deliver_vectors(message)
        except ImplausibleError as error:
            raise ProtocolBreachError(str(error)) from error
        if request.over:
            if request.usage is not None and request.prompt_counts:
                self.meter.prompt_tokens += request.usage.prompt_tokens
                self.queue.shares.count(request.usage.prompt_tokens)
            self._finished(request)
        return True

    def costs(self, message: Costs) -> None:
        self.queue.shares.charge_opaque(message.seconds)

    def rendered(self, message: Rendered) -> None:
        """Raises: ProtocolBreachError."""
        if (request := self.queue.find_running(message.request_id)) is not None:
            self._check_length(request.progress.render(message.token_ids, last=message.last))
            if message.last and request.trace is not None:
                request.trace.rendered(request.progress.prompt_ids)

    def failed(self, message: RequestFailed) -> None:
        if (request := self.queue.find_running(message.request_id)) is not None:
            refusal = Refusal(message.code, message.message, param=request.param_of(message))
            self.refuse(request, refusal)

    def refuse(self, request: Request, refusal: Refusal) -> None:
        """Refuse a running request, which the worker has dropped."""
        self._refuse(request, refusal)
        self._finished(request)

    def park_cold(self, request: Request) -> None:
        """Keep a running request, which the worker has dropped, for the next worker. That one gets
        it without cached blocks.
        """
        request.progress.cold = True
        self.queue.remove(request)
        request.park(self._loop.time())
        self._note_park(request)
        self.queue.park([request])
        self._owner.notify()

    # From the supervisor

    def connect(self, connection: WorkerConnection) -> None:
        if self._connection is None:
            # A `keep_alive_s` holds only for the worker that was loaded then.
            self.use.keep_alive_s = None
        self.reconnect(connection)

    def reconnect(self, connection: WorkerConnection) -> None:
        """Go on with the worker to which requests were sent before."""
        self._connection = connection
        self._draining = False
        self._note_waits()
        self.dispatch()

    def dispatch(self) -> None:
        """Send the requests that may run."""
        if self._draining or self._successor is not None:
            return
        connection = self._connection
        while connection is not None and (request := self._next()) is not None:
            self._send_request(request, connection)

    def _next(self) -> Request | None:
        """The request that may run now, perhaps in the place of another, which waits again."""
        if (request := self.queue.next()) is not None:
            return request
        now = self._loop.time()
        if (change := self.queue.make_way(now)) is None:
            return None
        self._send(Cancel(request_id=change.leaving.progress.wire_id))
        change.leaving.park(now)
        self._note_park(change.leaving)
        return change.coming

    def _send_request(self, request: Request, connection: WorkerConnection) -> None:
        """Send a request, or refuse it."""
        if (refusal := self._inability(request)) is not None:
            self._refuse(request, refusal)
            return
        terms = request.terms
        try:
            message = request.progress.next_message(
                connection.fingerprint,
                self.queue.priority_of(request),
                opaque(terms.sharer),
                terms.share,
            )
        except ModelChangedError:
            self._refuse(request, refusals.model_changed(self._model_id))
            return
        if request.progress.resumed:
            self.meter.resumed += 1
            self._emit("resume", request)
        try:
            if not isinstance(message, Passage):
                connection.send(message)
        except ProtocolError:
            self._refuse(request, refusals.too_large())
            return
        request.sampling = connection.sampling
        if request.trace is not None:
            request.trace.sent(connection.fingerprint, connection.prompts, connection.incarnation)
        self.queue.run(request)
        now = self._loop.time()
        request.start(now)
        if isinstance(message, Passage):
            place = Text(f"{connection.fingerprint}@{connection.address}")
            if request.deliver(Delta(message.request_id, (), (place,)), now):
                request.tell(now)
            request.timing.enter("answer", now)
        else:
            request.timing.sent(now)
        if not terms.probe:
            self.meter.sent(request.timing, now)

    def configure(self, bounds: QueueBounds) -> None:
        """Take other bounds. Requests that wait or run already stay, even beyond the bounds."""
        self.queue.depth = bounds.depth
        self.queue.max_running = bounds.concurrency
        self.queue.priority = bounds.priority
        self.dispatch()

    def allow(self, running: int) -> None:
        """Let so many requests run at once."""
        if running != self.queue.max_running:
            self.queue.max_running = running
            self.dispatch()

    def hand_over(self, successor: Successor) -> None:
        """Send nothing more to the worker. The successor gets requests and cancellations."""
        self._successor = successor

    @property
    def handed_over(self) -> bool:
        return self._successor is not None

    def take_back(self) -> None:
        """Go on without the successor, which may have finished some of the requests."""
        self._successor = None
        for request in [request for request in self.queue if request.over]:
            self.queue.remove(request)
        self.dispatch()

    def forget(self) -> None:
        """Forget all requests, as the successor has them."""
        self.queue.take_running()
        self.queue.take_waiting()

    def drain(self) -> None:
        """Send no waiting request; running requests may finish."""
        self._draining = True

    def park(self, *, blame: bool) -> bool:
        """Keep the running requests for the next worker. With `blame` this worker died by itself,
        and a suspect that ran is refused. Returns whether a suspect was refused.
        """
        self._connection = None
        now = self._loop.time()
        parked = []
        refused_suspect = False
        for request in self.queue.take_running():
            request.park(now)
            if isinstance(request.task, Passage):
                self._refuse(request, refusals.broke_off(self._model_id))
                continue
            if blame and request.progress.record_death():
                self._quarantine.add(request.task, now)
                self._refuse(request, refusals.died_twice(self._model_id))
                refused_suspect = True
            else:
                parked.append(request)
                self._note_park(request)
        self.queue.park(parked)
        self._note_waits()
        self._owner.notify()
        return refused_suspect

    def refuse_longest(self, refusal: Refusal) -> None:
        """Refuse the longest request in the worker, as its memory can't be had any more."""
        if (request := self.queue.longest_running) is not None:
            self._refuse(request, refusal)
            self.cancel(request)

    def refuse_waiting(self, refusal: Refusal) -> None:
        for request in self.queue.take_waiting():
            self._refuse(request, refusal)
        self._owner.notify()

    def refuse_all(self, refusal: Refusal) -> None:
        self.refuse_waiting(refusal)
        for request in self.queue.take_running():
            self._send(Cancel(request_id=request.progress.wire_id))
            self._refuse(request, refusal)
        self._owner.notify()

    def forget_deaths(self) -> None:
        """Let requests that killed workers try again, as the operator has changed something."""
        self._quarantine.clear()

    # Inside

    def _inability(self, request: Request) -> Refusal | None:
        wanted: Ability = "text"
        passes = isinstance(request.task, Passage)
        if self._connection is not None and bool(self._connection.address) is not passes:
            refuse = refusals.passes_nothing if passes else refusals.only_passes
            return refuse(self._model_id)
        if isinstance(request.task, Embed):
            wanted = "embedding" if request.task.query is None else "score"
        if passes or self.abilities is None or wanted in self.abilities:
            return None
        return refusals.unable(self._model_id, wanted, self.abilities)

    def _too_late(self, request: Request) -> Refusal:
        return refusals.too_late(self._model_id, request.terms.deadline_s, self._owner.describe())

    def _age_s(self, arrived_at: float | None) -> float | None:
        return None if arrived_at is None else max(0.0, self._loop.time() - arrived_at)

    def _finished(self, request: Request) -> None:
        self.queue.remove(request)
        self._note_use(request)
        self.dispatch()
        self._owner.notify()

    def _count(self, request: Request) -> None:
        if request.usage is not None and request.prompt_counts:
            self.prompt_tokens += request.usage.prompt_tokens
            self.cached_tokens += request.usage.cached_tokens

    def _count_loop(self, last: Delta) -> None:
        if last.repeats:
            self.meter.looped_answers += 1
            self.meter.repetition_stops += last.finish_reason == "stop"

    def _charge_passage(self, request: Request) -> None:
        """A passage costs the seconds for which it had a place."""
        if request.begun_at is not None:
            self.queue.shares.count(1)
            took_s = self._loop.time() - request.begun_at
            self.queue.shares.charge({request.terms.sharer: took_s})

    @property
    def _wait(self) -> PhaseKind:
        """What a request waits for that no worker has had."""
        return "load" if self._connection is None else "queue"

    def _note_waits(self) -> None:
        now = self._loop.time()
        for request in self.queue:
            if request.begun_at is None:
                request.timing.enter(self._wait, now)

    def _note_park(self, request: Request) -> None:
        request.timing.enter("parked", self._loop.time())
        self.meter.parked += 1
        self._emit("park", request)

    def _note_use(self, request: Request) -> None:
        if not request.terms.probe:
            self.use.record(request.terms.keep_alive_s)

    def _refuse(self, request: Request, refusal: Refusal) -> None:
        request.refuse(refusal)
        self._turned_away(request, refusal)

    def _turned_away(self, request: Request, refusal: Refusal) -> Refusal:
        self._emit("refuse", request, code=refusal.code)
        return refusal

    def _send(self, message: Message) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def _check_length(self, tokens: int) -> None:
        if self._connection is not None and tokens > self._connection.context_tokens:
            raise ProtocolBreachError(f"it sent {tokens} tokens for one request")

    def _emit(self, kind: Kind, request: Request, **fields: object) -> None:
        self._events.emit(
            kind,
            self._model_id,
            request=request.id,
            delivered_tokens=len(request.progress.delivered),
            **fields,
        )
