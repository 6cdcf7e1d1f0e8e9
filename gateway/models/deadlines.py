"""The states that may not last: a load, and a drain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.config.in_force import InForce
from gateway.models import refusals
from gateway.models.condition import Condition
from gateway.models.lifecycle import Event, State
from gateway.system.clock import Timer

_LOAD_TIMEOUTS: Final = 2


class Deadlines:
    """One model's. A load that is too slow counts as a death, the second in a row as a failure that
    lasts.
    """

    def __init__(self, model_id: str, in_force: InForce, condition: Condition) -> None:
        self._model_id = model_id
        self._in_force = in_force
        self._condition = condition
        self._timer: Timer | None = None
        self._load_timeouts = 0

    def entered(self) -> None:
        """Another state: it has its own deadline, or none."""
        settings = self._in_force.settings
        match self._condition.state:
            case State.STARTING:
                self._arm(settings.workers.load_timeout_s, self._load_too_slow)
            case State.LOADING:
                pass  # It belongs to the same load.
            case State.DRAINING:
                self._arm(settings.gateway.drain_s, self.cut_drain)
            case State.READY:
                self.disarm()
                self._load_timeouts = 0
            case _:
                self.disarm()

    def cut_drain(self) -> None:
        """Let a drain last no longer, if there is one."""
        if self._condition.state is State.DRAINING:
            self._condition.handle(Event.DEADLINE)

    def forget_timeouts(self) -> None:
        """The next load that is too slow is the first one."""
        self._load_timeouts = 0

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, seconds: float, passed: Callable[[], None]) -> None:
        self.disarm()
        self._timer = Timer(seconds, passed)

    def _load_too_slow(self) -> None:
        self._load_timeouts += 1
        again = self._load_timeouts >= _LOAD_TIMEOUTS
        seconds = self._in_force.settings.workers.load_timeout_s
        reason = f"it was not loaded within {seconds:g} s (workers.load_timeout_s)"
        self._condition.handle(
            Event.TOO_SLOW if again else Event.DEADLINE,
            f"{reason}, twice" if again else reason,
            refusal=refusals.load_too_slow(self._model_id, reason),
        )
