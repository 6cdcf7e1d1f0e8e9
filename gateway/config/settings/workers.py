"""What workers may hold, and what is done about those that die."""

from __future__ import annotations

from typing import Annotated

from gateway.config.kinds import Budget, Size, byte_size, memory_budget, switch, time, whole
from gateway.config.settings.section import Section


class MemorySettings(Section, frozen=True):
    """What the workers may hold together."""

    # Sizes are as they were written; a percentage is of the memory that models are in:
    # the machine's, or a card's.
    budget: Annotated[
        Budget,
        memory_budget("What all workers may hold; auto is what MLX may use, less the headroom."),
    ] = "auto"
    headroom: Annotated[Size, byte_size("What an automatic budget leaves to everything else.")] = (
        "2GB"
    )
    ordinary_tokens: Annotated[
        int,
        whole(
            "A model is loaded once there is room for one sequence of so many tokens; what longer "
            "and more of them take is lent.",
            1,
        ),
    ] = 4096
    wire_weights: Annotated[
        bool,
        switch(
            "Ask macOS to keep weights resident. It may unwire them all the same, and wired memory "
            "has taken part in panics of the machine."
        ),
    ] = False


class WorkersSettings(Section, frozen=True):
    """The processes that hold the models."""

    spare: Annotated[int, whole("Workers that have done their imports and wait for a model.")] = 1
    # At once is no time to load in, or to make a step.
    load_timeout_s: Annotated[
        float, time("Longest time from a worker's start until the model answers.", least_s=0.1)
    ] = 600.0
    restart_limit: Annotated[
        int, whole("Deaths within the window that are answered by a start at once.")
    ] = 3
    restart_window_s: Annotated[float, time("The window in which deaths are counted.")] = 60.0
    backoff_limit: Annotated[
        int, whole("Then so many starts after a pause, and then the breaker opens.")
    ] = 5
    backoff_first_s: Annotated[float, time("The first pause; each is twice the one before.")] = 1.0
    backoff_longest_s: Annotated[float, time("The longest pause.")] = 60.0
    breaker_retry_s: Annotated[
        float, time("Time until the open breaker lets one start be tried.")
    ] = 300.0
    heartbeat_timeout_s: Annotated[
        float, time("A worker that is silent for so long, and 2 s at least, is hung.", least_s=0.1)
    ] = 10.0
    stall_timeout_s: Annotated[
        float, time("A worker that has work and makes no step for so long is hung.", least_s=0.1)
    ] = 60.0
    # No chunk would be short enough for less.
    prefill_stall_s: Annotated[
        float,
        time(
            "The longest that a prompt's chunk holds up running streams beside one step; a worker "
            "takes it at its load.",
            least_s=0.01,
        ),
    ] = 0.1
