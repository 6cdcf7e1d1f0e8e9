"""The commands of the system's service manager, each with a deadline, and their failures."""

from __future__ import annotations

import subprocess
from typing import Final

from msgspec import Struct


class ServiceError(Exception):
    """The text is a sentence that says what, why and what to do."""


class ServiceMisuseError(ServiceError):
    """The order can't be meant that way."""


_LONGEST_S: Final = 30.0


class Done(Struct, frozen=True):
    """How a command ended; what it said on stderr, or else on stdout; and what it printed."""

    command: str
    status: int
    said: str
    printed: str

    def failed(self) -> ServiceError:
        why = self.said or f"exit status {self.status}"
        return ServiceError(f"`{self.command}` failed: {why}")


def run(*arguments: str, within_s: float = _LONGEST_S) -> Done:
    """Raises: ServiceError if the command can't be run, or doesn't end."""
    command = " ".join(arguments)
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise ServiceError(f"There is no `{arguments[0]}` on this machine.") from error
    except OSError as error:
        raise ServiceError(f"`{command}` can't be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"`{command}` did not end within {within_s:g} s.") from error
    said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return Done(command, done.returncode, said, done.stdout)
