"""Runs of hypothesis' state machines that are worlds: many, each of a few steps and a long end."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_worlds(world: type[RuleBasedStateMachine], examples: int) -> None:
    """A failing one is told as it is: to shrink it would take longer than to find it."""
    run_state_machine_as_test(
        world,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),
            print_blob=False,
        ),
    )
