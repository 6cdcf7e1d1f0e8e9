"""What must be there before others than this machine may come, or TLS can be spoken. Blocks."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.access.key_file import KeyFile, KeyFileError
from gateway.config.kinds import toml_text
from gateway.config.locations import Place
from gateway.config.models import expand_home
from gateway.config.places import Places, Sought
from gateway.config.settings import GatewaySettings, Settings
from gateway.system.notation import is_loopback
from gateway.system.state_dir import StateDir, default_state_dir
from gateway.system.tls import check, ends_soon

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
