"""What must hold between keys, and between the configuration and the machine.

Each rule yields the place of a mistake and what is wrong there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

from gateway.config.kinds import toml_text
from gateway.config.locations import Place
from gateway.config.loopback import LOOPBACK_NAMES
from gateway.config.models import expand_home
from gateway.config.settings import Settings

Complaint: TypeAlias = tuple[Place, str]

# File names have 255 bytes on either system, and a suffix follows.
_LONGEST_ID: Final = 200


def complaints(settings: Settings) -> Iterator[Complaint]:
    """What is wrong in values that are right one by one."""
    yield from _host(settings)
    yield from _state_dir(settings)
    yield from _ids(settings)
    yield from _aliases(settings)


def _host(settings: Settings) -> Iterator[Complaint]:
    if (host := settings.gateway.host) not in LOOPBACK_NAMES:
        yield (
            ("gateway", "host"),
            f"{host} is not loopback: without API keys the gateway listens on 127.0.0.1, ::1 or "
            "localhost only",
        )


def _state_dir(settings: Settings) -> Iterator[Complaint]:
    state_dir = settings.gateway.state_dir or ""
    if state_dir.startswith("~") and expand_home(state_dir) == Path(state_dir):
        yield ("gateway", "state_dir"), f"there is no home of {Path(state_dir).parts[0]}"


def _ids(settings: Settings) -> Iterator[Complaint]:
    for model_id in settings.models:
        if not 0 < len(quote(model_id, safe="", errors="replace")) <= _LONGEST_ID:
            yield (
                ("models", model_id),
                f"an id has 1 to {_LONGEST_ID} characters, as log files are named after it "
                "(others than ASCII count several times)",
            )
        elif {".", ".."} & set(model_id.split("/")):
            yield (
                ("models", model_id),
                "no part of an id is . or .., which addresses take for something else",
            )


def _aliases(settings: Settings) -> Iterator[Complaint]:
    taken = dict.fromkeys(settings.models, "a model's id")
    for model_id, model in settings.models.items():
        for index, alias in enumerate(model.aliases):
            if alias in taken:
                yield (
                    ("models", model_id, "aliases", index),
                    f"{toml_text(alias)} is {taken[alias]} already",
                )
            taken.setdefault(alias, f"an alias of {toml_text(model_id)}")
