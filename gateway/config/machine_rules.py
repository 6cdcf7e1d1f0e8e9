"""Rules between the configuration and the machine: whether folders, keys and certificates exist.

A disk may not answer, so all paths of a rule are checked at once, with a deadline. Each rule yields
the place of each mistake in the configuration, with a message. The rules block.
"""

from __future__ import annotations

import functools
import shlex
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gateway.access.key_file import KeyFile
from gateway.config.key import toml_text
from gateway.config.model_folders import NotThereError, expand_home, find_folder, find_pictures
from gateway.config.settings import GatewaySettings, Settings
from gateway.config.tables import MODELS, UPSTREAMS
from gateway.config.toml_locations import Place
from gateway.system.lane import Inquiries
from gateway.system.notation import is_loopback
from gateway.system.state_dir import StateDir
from gateway.system.state_file import read_secret
from gateway.system.tls import check, ends_soon
from protocol.model_files import read_config, undivided

# The deadline of all paths that are checked at once. A disk that sleeps takes seconds to answer.
_ANSWER_S: Final = 10.0


class Sought(NamedTuple):
    """The check of a file or folder at `path`. `what` tells apart checks of the same path; mostly
    it is the name of the key that has the path.
    """

    what: str
    path: str


class Places:
    """Checks many paths at once. A check that hangs isn't begun a second time."""

    def __init__(self) -> None:
        self._inquiries: Inquiries[Sought, str] = Inquiries()

    def locate(self, looks: Mapping[Sought, Callable[[], str]]) -> dict[Sought, str | ValueError]:
        """Call all functions in `looks`, each on a thread. Return the result of each, or an error
        with a text for the operator.
        """
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


def picture_complaints(settings: Settings, places: Places) -> Iterator[tuple[Place, str]]:
    """Mistakes in `gateway.image_folders`."""
    yield from _complaints(
        places,
        [
            (
                ("gateway", "image_folders", index),
                Sought("image_folders", folder),
                functools.partial(find_pictures, folder),
            )
            for index, folder in enumerate(settings.gateway.image_folders)
            # `gateway.config.rules` reports paths that aren't absolute.
            if expand_home(folder).is_absolute()
        ],
    )


def key_complaints(settings: Settings, places: Places) -> Iterator[tuple[Place, str]]:
    """Mistakes in the key files and certificates of the configured upstreams."""
    looks: list[tuple[Place, Sought, Callable[[], str]]] = []
    for name, upstream in settings.upstreams.items():
        if (file := upstream.key_file) is not None:
            look = functools.partial(_read_key, file, "write the key of the upstream into it")
            looks.append(((UPSTREAMS, name, "key_file"), Sought("upstream's key", file), look))
        if (file := upstream.certificate) is not None:
            place = (UPSTREAMS, name, "certificate")
            looks.append((place, Sought("authority", file), functools.partial(_trust, file)))
    yield from _complaints(places, looks)


def heads_complaints(
    settings: Settings, folders: Mapping[str, str], places: Places
) -> Iterator[tuple[Place, str]]:
    """Mistakes in models with a number of ranks that can't share the attention heads. `folders`
    maps the ids of models to their folders or repositories. If the files of a model can't be read
    now, the load of the model reports the mistake.
    """
    looks: list[tuple[Place, Sought, Callable[[], str]]] = []
    for model_id, located in folders.items():
        model = settings.models[model_id]
        size = len(model.places)
        if size > 1 and model.split == "tensor":
            place = (MODELS, model_id, "ranks" if model.ranks else "local")
            look = functools.partial(_check_heads, located, size)
            looks.append((place, Sought(f"heads for {size}", located), look))
    yield from _complaints(places, looks)


def _complaints(
    places: Places, looks: Sequence[tuple[Place, Sought, Callable[[], str]]]
) -> Iterator[tuple[Place, str]]:
    answers = places.locate({sought: look for _, sought, look in looks})
    for place, sought, _ in looks:
        if isinstance(answer := answers[sought], ValueError):
            yield place, str(answer)


def _trust(path: str) -> str:
    """Raises: ValueError: the file has no certificate."""
    try:
        ssl.create_default_context(cafile=expand_home(path))
    except ssl.SSLError as error:
        raise ValueError(f"{path} has no certificate in PEM") from error
    return ""


def _read_key(path: str, hint: str) -> str:
    """`hint` says how to get the file. Raises: ValueError: the key file can't be used."""
    file = expand_home(path)
    try:
        text = read_secret(file).decode("ascii", "replace")
    except FileNotFoundError:
        raise ValueError(f"there is no file {file}: {hint}") from None
    except PermissionError as error:
        raise ValueError(f"{file} can't be used: {error.strerror}; `chmod 600 {file}`") from error
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from error
    if len(text.split()) != 1 or not text.strip().isascii():
        raise ValueError(f"{file} holds no key, which is one word: {hint}")
    return ""


def _check_heads(located: str, size: int) -> str:
    """Raises: ValueError: `size` ranks can't share the model's attention heads."""
    try:
        config = read_config(find_folder(located))
    except (OSError, ValueError):
        # The folder may exist later, and the load reports what is wrong with it.
        return ""
    if (reason := undivided(config, size)) is not None:
        raise ValueError(
            f"the model can't be split over {size} ranks by tensors: {reason}; choose a number "
            'that does, or split = "pipeline"'
        )
    return ""


TLS_PLACES: Final[tuple[Place, Place]] = (("gateway", "tls_certificate"), ("gateway", "tls_key"))


def exposed(settings: GatewaySettings) -> bool:
    """Whether other machines can reach the gateway directly."""
    return not is_loopback(settings.host)


def tls_files(settings: GatewaySettings) -> tuple[Path, Path] | None:
    """The files of the certificate and its key; None for plain HTTP."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return expand_home(settings.tls_certificate), expand_home(settings.tls_key)


def network_complaints(settings: Settings, places: Places) -> Iterator[tuple[Place, str]]:
    """Mistakes in what a gateway needs if other machines reach it: API keys and certificates."""
    gateway = settings.gateway
    for place, reason in needs_keys(gateway):
        if not has_keys(gateway):
            yield place, f"{reason}; {first_key(gateway)} makes the first one"
    for setting, needed in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate")):
        if getattr(gateway, setting) is not None and getattr(gateway, needed) is None:
            yield ("gateway", setting), f"it needs {needed} beside it"
    files = tls_files(gateway)
    if files is not None:
        certificate, key = files

        def look() -> str:
            check(certificate, key, time.time())
            return ""

        sought = Sought("tls_certificate", str(certificate))
        yield from _complaints(places, [(TLS_PLACES[0], sought, look)])


def needs_keys(gateway: GatewaySettings) -> Iterator[tuple[Place, str]]:
    """The settings with which a gateway needs API keys, and why."""
    if exposed(gateway):
        yield (
            ("gateway", "host"),
            f"{gateway.host} is not loopback: without API keys the gateway listens on 127.0.0.1, "
            "::1 or localhost only",
        )
    for index, name in enumerate(gateway.allowed_hosts):
        if not is_loopback(name):
            yield (
                ("gateway", "allowed_hosts", index),
                f"{toml_text(name)} is not this machine alone: without API keys every client that "
                "uses that name would be the operator",
            )


def why_keys_stay(gateway: GatewaySettings) -> str | None:
    """Why a gateway can't go on without keys, and what to do first, in sentences; None: it can."""
    reasons: dict[str, str] = {}
    for place, reason in needs_keys(gateway):
        reasons.setdefault(str(place[1]), reason)
    if not reasons:
        return None
    keys = " and ".join(f"gateway.{name}" for name in reasons)
    flag, then = "", "run `bulkhead config reload`"
    if "host" in reasons:
        flag, then = " (a --host out of the command)", "restart the gateway"
    return (
        f"The keys stay: {'; '.join(reasons.values())}. First take {keys} out of the configuration"
        f"{flag} and {then}, then `bulkhead key off`."
    )


def network_cautions(settings: GatewaySettings) -> Iterator[str]:
    """Warnings about the network settings of a configuration without mistakes."""
    files = tls_files(settings)
    if files is None:
        if exposed(settings):
            yield (
                f"On {settings.host} API keys and texts travel in plain HTTP, which every machine "
                "on the way can read: set gateway.tls_certificate and tls_key, or let a VPN or a "
                "proxy encrypt them."
            )
    elif (soon := ends_soon(files[0], time.time())) is not None:
        yield soon


def first_key(settings: GatewaySettings) -> str:
    """The command that makes the first API key. If the configuration sets the state folder, the
    command names that folder, as `bulkhead key add` doesn't read the configuration.
    """
    command = "bulkhead key add NAME"
    if settings.state_dir is not None:
        command += f" --state-dir {shlex.quote(str(StateDir.of(settings.state_dir).path))}"
    return f"`{command}`"


def has_keys(settings: GatewaySettings) -> bool:
    """Whether requests need an API key: they do if there is the file of the keys, also after the
    last one was revoked. If that can't be known they do: the gateway's start fails on it anyway.
    """
    try:
        return KeyFile(StateDir.of(settings.state_dir).keys_path).signature() is not None
    except OSError:
        return True
