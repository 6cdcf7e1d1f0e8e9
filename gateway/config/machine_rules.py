"""What must hold between the configuration and the machine: folders, keys, certificates are there.

Disks may not answer, so all of them are asked at once, with a deadline. Each rule yields the place
of a mistake and what is wrong there. Blocks.
"""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gateway.access.key_file import KeyFile, KeyFileError
from gateway.config.key import toml_text
from gateway.config.model_folders import NotThereError, expand_home, find_folder, find_pictures
from gateway.config.settings import GatewaySettings, Settings
from gateway.config.tables import HOSTS, MODELS
from gateway.config.toml_file import Place
from gateway.system.lane import Inquiries
from gateway.system.notation import is_loopback
from gateway.system.state_dir import StateDir, default_state_dir
from gateway.system.state_file import read_secret
from gateway.system.tls import check, ends_soon
from protocol.model_files import read_config, undivided

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


def picture_complaints(settings: Settings, places: Places) -> Iterator[tuple[Place, str]]:
    """Of those that could be one."""
    sought = {
        ("gateway", "image_folders", index): Sought("image_folders", folder)
        for index, folder in enumerate(settings.gateway.image_folders)
        # That it isn't absolute was told already.
        if expand_home(folder).is_absolute()
    }
    answers = places.locate(
        {each: functools.partial(find_pictures, each.path) for each in sought.values()}
    )
    for place, each in sought.items():
        if isinstance(answer := answers[each], ValueError):
            yield place, str(answer)


def key_complaints(settings: Settings, places: Places) -> Iterator[tuple[Place, str]]:
    """Of the hosts that are configured."""
    sought: dict[Place, Sought] = {
        (HOSTS, name, "key_file"): Sought("key_file", host.key_file)
        for name, host in settings.hosts.items()
        # What is missing was told already.
        if host.key_file
    }
    yield from _complaints(
        places, sought, {each: functools.partial(_read_key, each.path) for each in sought.values()}
    )


def heads_complaints(
    settings: Settings, folders: Mapping[str, str], places: Places
) -> Iterator[tuple[Place, str]]:
    """Of the models that were found, by what `folders` has of them. Of others the load says it."""
    sought: dict[Place, Sought] = {}
    looks: dict[Sought, Callable[[], str]] = {}
    for model_id, located in folders.items():
        model = settings.models[model_id]
        size = len(model.places)
        if size > 1 and model.split == "tensor":
            place = (MODELS, model_id, "ranks" if model.ranks else "local")
            sought[place] = each = Sought(f"heads for {size}", located)
            looks[each] = functools.partial(_check_heads, located, size)
    yield from _complaints(places, sought, looks)


def _complaints(
    places: Places, sought: Mapping[Place, Sought], looks: Mapping[Sought, Callable[[], str]]
) -> Iterator[tuple[Place, str]]:
    answers = places.locate(looks)
    for place, each in sought.items():
        if isinstance(answer := answers[each], ValueError):
            yield place, str(answer)


def _read_key(path: str) -> str:
    """Raises: ValueError."""
    file = expand_home(path)
    try:
        read_secret(file)
    except FileNotFoundError:
        raise ValueError(
            f"there is no file {file}: copy agent.key from the state folder of the agent"
        ) from None
    except PermissionError as error:
        raise ValueError(f"{file} can't be used: {error.strerror}; `chmod 600 {file}`") from error
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from error
    return ""


def _check_heads(located: str, size: int) -> str:
    """Raises: ValueError."""
    try:
        config = read_config(find_folder(located))
    except (OSError, ValueError):
        # It may be there later, and what is wrong with it is the load's to say.
        return ""
    if (reason := undivided(config, size)) is not None:
        raise ValueError(
            f"the model can't be split over {size} ranks by tensors: {reason}; choose a number "
            'that does, or split = "pipeline"'
        )
    return ""


TLS_PLACES: Final[tuple[Place, Place]] = (("gateway", "tls_certificate"), ("gateway", "tls_key"))


def exposed(settings: GatewaySettings) -> bool:
    """Whether others than this machine can reach the gateway by itself."""
    return not is_loopback(settings.host)


def tls_files(settings: GatewaySettings) -> tuple[Path, Path] | None:
    """The certificate and its key, if there is to be TLS."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return expand_home(settings.tls_certificate), expand_home(settings.tls_key)


def network_complaints(settings: Settings, places: Places) -> Iterator[tuple[Place, str]]:
    """What is missing, or can't be used."""
    gateway = settings.gateway
    if exposed(gateway) and not has_keys(gateway):
        yield (
            ("gateway", "host"),
            f"{gateway.host} is not loopback: without API keys the gateway listens on 127.0.0.1, "
            f"::1 or localhost only; {first_key(gateway)} makes the first one",
        )
    for index, name in enumerate(gateway.allowed_hosts):
        if not is_loopback(name) and not has_keys(gateway):
            yield (
                ("gateway", "allowed_hosts", index),
                f"{toml_text(name)} is not this machine alone: without API keys whoever comes by "
                f"that name would be the operator; {first_key(gateway)} makes the first one",
            )
    for one, other in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate")):
        if getattr(gateway, one) is not None and getattr(gateway, other) is None:
            yield ("gateway", one), f"it needs {other} beside it"
    files = tls_files(gateway)
    if files is not None:
        certificate, key = files

        def look() -> str:
            check(certificate, key, time.time())
            return ""

        sought = Sought("tls_certificate", str(certificate))
        answer = places.locate({sought: look})[sought]
        if isinstance(answer, ValueError):
            yield ("gateway", "tls_certificate"), str(answer)


def network_cautions(settings: GatewaySettings) -> Iterator[str]:
    """What is no mistake and should be known, of a configuration without complaints."""
    files = tls_files(settings)
    if files is None:
        if exposed(settings):
            yield (
                f"On {settings.host} API keys and texts travel in plain HTTP, for everybody on the "
                "way to read: set gateway.tls_certificate and tls_key, or let a VPN or a proxy "
                "encrypt them."
            )
    elif (soon := ends_soon(files[0], time.time())) is not None:
        yield soon


def first_key(settings: GatewaySettings) -> str:
    """The command knows nothing of a file or a flag that names another folder."""
    command = "bulkhead key add NAME"
    if settings.state_dir is not None:
        command += f" --state-dir {shlex.quote(str(_state_dir(settings).path))}"
    return f"`{command}`"


def _state_dir(settings: GatewaySettings) -> StateDir:
    try:
        return StateDir(Path(settings.state_dir or default_state_dir()))
    except RuntimeError:
        # It begins with the home of an account that isn't there, which is a mistake of its own.
        return StateDir(default_state_dir())


def has_keys(settings: GatewaySettings) -> bool:
    """Revoked ones are enough: they keep everybody out. A file that can't be read is told of by the
    start, which doesn't go on then.
    """
    try:
        return bool(KeyFile(_state_dir(settings).keys_path).read())
    except KeyFileError:
        return True
