"""Runs an agent in place of this command, or beside a gateway of its own."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

from gateway.cli.failure import CommandError
from gateway.system.child import Child

# A terminal sends these to the agent as well.
_FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP)


def become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Run the agent in place of this process, which so has its signals and its exit status."""
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        raise CommandError(f"{command[0]} can't be started: {error.strerror}.") from error


def run(command: list[str], environment: dict[str, str]) -> int:
    """Run the agent, pass signals on, and return its exit status, as a shell would have it."""
    try:
        agent = Child(
            command, "agent", environment=environment, stdin=None, stdout=None, stderr=None
        )
    except OSError as error:
        raise CommandError(f"{command[0]} can't be started: {error.strerror}.") from error

    def forward(number: int, _frame: FrameType | None) -> None:
        agent.signal(signal.Signals(number))

    def ignore(_number: int, _frame: FrameType | None) -> None:
        """The agent decides by itself."""

    from_terminal = ignore if sys.stdin.isatty() else forward
    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    before |= {number: signal.signal(number, from_terminal) for number in _FROM_TERMINAL}
    try:
        status = agent.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - status if status < 0 else status
