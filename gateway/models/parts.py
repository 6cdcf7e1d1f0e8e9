"""What the objects of one model work with: what all models share, and what is the model's own."""

from __future__ import annotations

from typing import NamedTuple

from gateway.config.tables import InForce
from gateway.memory.scheduler import MemoryScheduler
from gateway.models.condition import Condition
from gateway.models.model_memory import ModelMemory
from gateway.requests.traffic import Traffic
from gateway.system.events import EventLog
from gateway.system.tasks import Tasks
from gateway.workers.starter import Starter
from gateway.workers.worker_log import WorkerLog
from protocol.life import PromptCacheDisk


class GatewayParts(NamedTuple):
    """What all models of a gateway share. Without a `prompt_cache` workers keep prompts in memory
    alone.
    """

    in_force: InForce
    events: EventLog
    scheduler: MemoryScheduler
    starter: Starter
    prompt_cache: PromptCacheDisk | None


class ModelParts(NamedTuple):
    """One model's state, requests, memory, log and background tasks."""

    condition: Condition
    traffic: Traffic
    model_memory: ModelMemory
    log: WorkerLog
    tasks: Tasks
