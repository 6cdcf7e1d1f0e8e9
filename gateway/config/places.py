"""Where models are, asked of disks that may not answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gateway.config.models import NotThereError, expand_home
from gateway.system.lane import Inquiries

# For all places together: they are asked side by side. A disk that sleeps takes seconds.
_ANSWER_S: Final = 10.0


class Sought(NamedTuple):
    """`what` is looked for at `path`, by the name of its key."""

    what: str
    path: str


class Places:
    """Asks all of them at once."""

    def __init__(self) -> None:
        self._inquiries: Inquiries[Sought, str] = Inquiries()

    def locate(self, looks: Mapping[Sought, Callable[[], str]]) -> dict[Sought, str | ValueError]:
        """What each look gave, or the sentence for the operator."""
        for sought, look in looks.items():
            self._inquiries.ask(sought, look, f"locate {sought.path}")
        return {sought: self._answer(sought) for sought in looks}

    def _answer(self, sought: Sought) -> str | ValueError:
        path = sought.path
        try:
            return self._inquiries.answer(sought, _ANSWER_S)
        except TimeoutError:
            seconds = self._inquiries.age_s(sought)
            return NotThereError(
                f"{path} did not answer within {seconds:.0f} s: is it on a mount that has died?",
                str(expand_home(path).absolute()),
            )
        except OSError as error:
            return ValueError(f"{path} can't be looked at: {error}.")
        except ValueError as error:
            return error
