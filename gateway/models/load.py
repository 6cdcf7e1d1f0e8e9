"""A load of a model, from the first request to its first token:

1. A request, an order or the configuration wants the model, and the model waits for memory.
2. The scheduler reads the model's files, and admits the model once its floor is free.
3. A spare worker is adopted, or a process is started.
4. The worker says hello. Its memory is measured, and it gets the order to load.
5. The worker reports its progress. If its weights are larger than its limit, it is ended.
6. The worker is ready. The time of the load is recorded, and the waiting requests are sent.
7. If the load fails or takes too long, the worker is ended, and the restart policy decides.

The life cycle (`gateway.models.lifecycle`) knows which step may follow which, and calls the steps
by its effects. A worker's messages call the steps 4 to 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.config.model_folders import expand_home
from gateway.models.lifecycle import ModelEvent, State
from gateway.models.model_memory import GatewayParts, ModelParts
from gateway.models.recovery import Recovery
from gateway.requests import refusals
from gateway.system.notation import format_size
from gateway.workers.worker import Listener, Worker
from protocol.life import Hello, Load, LoadFailed, LoadProgress, Ready, RunCommand


class ModelLoad:
    """The steps of a model's loads."""

    def __init__(
        self,
        parts: ModelParts,
        gateway: GatewayParts,
        recovery: Recovery,
        supervise: Callable[[Callable[[Listener], Worker]], object],
    ) -> None:
        """`supervise` gets a function that starts a worker with a listener, and supplies the
        listener.
        """
        self._parts = parts
        self._gateway = gateway
        self._recovery = recovery
        self._supervise = supervise
        self._loop = asyncio.get_running_loop()
        self._started_at = 0.0

    def ask_for_memory(self) -> None:
        """Steps 1 and 2: the scheduler answers by the event `ADMITTED`, or by a refusal."""
        self._parts.model_memory.ask()

    def start_worker(self) -> None:
        """Step 3."""
        memory = self._parts.model_memory
        self._started_at = self._loop.time()
        self._recovery.starting()
        try:
            self._supervise(
                lambda listener: self._gateway.starter.start(
                    memory.model, self._parts.log, listener, memory.estimate
                )
            )
        except Exception as error:
            # Every error is caught: without a worker no event would end the state STARTING.
            self._recovery.not_started(error)

    def worker_connected(self, worker: Worker, hello: Hello) -> None:
        """Step 4: the life cycle has the worker measured, then `send_order` is called."""
        if hello.incarnation == worker.incarnation:
            self._parts.condition.handle(ModelEvent.HELLO)
        else:
            self._recovery.end_misbehaving(worker, f"it says it is incarnation {hello.incarnation}")

    async def send_order(self, worker: Worker) -> None:
        """Step 4, once the worker is measured."""
        followers = worker.followers
        ranks = None if followers is None else await followers.until_started()
        loading = not worker.ended.is_set() and self._parts.condition.state is State.LOADING
        if not loading or (followers is not None and ranks is None):
            return
        memory = self._parts.model_memory
        model, settings, estimate = memory.model, memory.model.settings, memory.estimate
        if model.is_command:
            worker.send(
                RunCommand(
                    command=(model.source, *settings.command[1:]),
                    environment=settings.environment,
                    folder=str(expand_home(settings.folder or "~")),
                    health=settings.health,
                )
            )
            return
        in_force = self._gateway.in_force.settings
        worker.memory.baseline_bytes = worker.memory.held_bytes or 0
        memory.learn_process(worker)
        worker.send(
            Load(
                path=model.source,
                max_concurrency=settings.max_concurrency,
                context_tokens=settings.context_tokens,
                limit_bytes=worker.memory.granted_bytes,
                beside_bytes=worker.memory.tell_beside(),
                working_bytes=0 if estimate is None else estimate.working_bytes,
                working_token_bytes=0 if estimate is None else estimate.working_token_bytes,
                wire=in_force.memory.wire_weights,
                model_id=model.id,
                stall_s=in_force.workers.prefill_stall_s,
                prompt_cache=self._gateway.prompt_cache,
                kv_bits=settings.kv_bits,
                adapter_path=model.adapter,
                draft_path=model.draft,
                draft_tokens=settings.draft_tokens,
                guesses=settings.guesses,
                bound=memory.bound_to_send(),
                pictures=settings.pictures,
                ranks=ranks,
                awaited=self._parts.traffic.queue.waiting > 0,
                cache_failures=self._parts.cache_proof.failures,
            )
        )

    def progressed(self, worker: Worker, progress: LoadProgress) -> None:
        """Step 5. Larger weights mean that the files have changed since they were estimated."""
        total, granted_bytes = format_size(progress.total_bytes), worker.memory.granted_bytes
        self._parts.condition.progress(
            f"loading: {format_size(progress.loaded_bytes)} of {total}"
            if progress.loaded_bytes < progress.total_bytes
            else f"loading: {total} are read, kernels are compiled"
        )
        if granted_bytes is not None and progress.total_bytes > granted_bytes:
            self._recovery.end_misbehaving(
                worker,
                f"its weights are {total} and it was granted {format_size(granted_bytes)}: its "
                "files have changed",
            )

    def finish(self, worker: Worker, ready: Ready) -> None:
        """Step 6: the life cycle has the waiting requests sent."""
        memory = self._parts.model_memory
        memory.reload_s = self._loop.time() - self._started_at
        self._parts.traffic.meter.load_s.observe(memory.reload_s)
        self._parts.condition.handle(ModelEvent.LOADED)
        self._gateway.events.emit(
            "ready",
            memory.model.id,
            pid=worker.pid,
            incarnation=worker.incarnation,
            load_s=ready.load_s,
        )

    def fail(self, failed: LoadFailed) -> None:
        """Step 7. A load that is too slow is an event of `gateway.models.condition.Deadlines`."""
        memory = self._parts.model_memory
        retry_after_s = None if failed.permanent else memory.load_s
        self._parts.condition.handle(
            ModelEvent.LOAD_IMPOSSIBLE if failed.permanent else ModelEvent.LOAD_FAILED,
            failed.reason,
            refusal=refusals.load_failed(
                memory.model.id, failed.reason, retry_after_s=retry_after_s
            ),
        )
