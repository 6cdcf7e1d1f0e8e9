"""What workers may hold, and what is done about those that die."""

from __future__ import annotations

from typing import Annotated, ClassVar

from gateway.config.kinds import Size, Switch, Time, Whole
from gateway.config.settings.section import Key, Section


class MemorySettings(Section, frozen=True):
    """Sizes are as they were written; a percentage is of the memory that models are in:
    the machine's, or a card's.
    """

    about: ClassVar[str] = "What the workers may hold together."

    budget: Annotated[
        int | str,
        Key(
            Size(automatic=True),
            "What all workers may hold; auto is what MLX may use, less the headroom.",
        ),
    ] = "auto"
    headroom: Annotated[
        int | str, Key(Size(), "What an automatic budget leaves to everything else.")
    ] = "2GB"
    ordinary_tokens: Annotated[
        int,
        Key(
            Whole(1),
            "A model is loaded once there is room for one sequence of so many tokens; what longer "
            "and more of them take is lent.",
        ),
    ] = 4096
    wire_weights: Annotated[
        bool,
        Key(
            Switch(),
            "Ask macOS to keep weights resident. It may unwire them all the same, and wired memory "
            "has taken part in panics of the machine.",
        ),
    ] = False


class WorkersSettings(Section, frozen=True):
    about: ClassVar[str] = "The processes that hold the models."

    spare: Annotated[
        int, Key(Whole(), "Workers that have done their imports and wait for a model.")
    ] = 1
    # At once is no time to load in, or to make a step.
    load_timeout_s: Annotated[
        float,
        Key(Time(least_s=0.1), "Longest time from a worker's start until the model answers."),
    ] = 600.0
    restart_limit: Annotated[
        int, Key(Whole(), "Deaths within the window that are answered by a start at once.")
    ] = 3
    restart_window_s: Annotated[float, Key(Time(), "The window in which deaths are counted.")] = (
        60.0
    )
    backoff_limit: Annotated[
        int, Key(Whole(), "Then so many starts after a pause, and then the breaker opens.")
    ] = 5
    backoff_first_s: Annotated[
        float, Key(Time(), "The first pause; each is twice the one before.")
    ] = 1.0
    backoff_longest_s: Annotated[float, Key(Time(), "The longest pause.")] = 60.0
    breaker_retry_s: Annotated[
        float, Key(Time(), "Time until the open breaker lets one start be tried.")
    ] = 300.0
    heartbeat_timeout_s: Annotated[
        float,
        Key(Time(least_s=0.1), "A worker that is silent for so long, and 2 s at least, is hung."),
    ] = 10.0
    stall_timeout_s: Annotated[
        float,
        Key(Time(least_s=0.1), "A worker that has work and makes no step for so long is hung."),
    ] = 60.0
    # No chunk would be short enough for less.
    prefill_stall_s: Annotated[
        float,
        Key(
            Time(least_s=0.01),
            "The longest that a prompt's chunk holds up running streams beside one step; a worker "
            "takes it at its load.",
        ),
    ] = 0.1
