"""bulkhead agent"""

from __future__ import annotations

import logging
import shlex
import socket
import sys
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import click

from gateway.access.key_file import ensured_admin_key
from gateway.cli.options import log_level_option, log_to_option
from gateway.cli.output import printable
from gateway.config.key import UnexpectedError, key_of, read_value, time, toml_text
from gateway.config.model_folders import expand_home
from gateway.config.settings import MemorySettings
from gateway.config.tables import keys_of
from gateway.memory.fitting import budget_bytes
from gateway.server import agent_server as server
from gateway.server.agent_server import AgentTerms
from gateway.server.uvicorn_server import PortTakenError, bind
from gateway.system.log_lines import gateway_logs
from gateway.system.machine import raise_file_limit
from gateway.system.notation import format_size, is_loopback, url
from gateway.system.state_dir import StateDir, StateDirError, default_state_dir
from gateway.system.tls import (
    CertificateError,
    Certificates,
    ensured_certificate,
    fingerprint_of_file,
)

logger = logging.getLogger(__name__)

PORT: Final = 8643
_BUDGET: Final = keys_of(MemorySettings)["budget"].type
_LEASE: Final = Annotated[float, time("The silence that ends ranks.", least_s=2.0)]


def _check_budget(_context: click.Context, _parameter: click.Parameter, text: str) -> int | str:
    size: int | str = _option(_BUDGET, text)
    return size


def _check_lease(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    seconds: float = _option(_LEASE, text)
    return seconds


def _option(annotation: Any, text: str) -> Any:
    try:
        return read_value(annotation, text)
    except UnexpectedError:
        raise click.BadParameter(f"expected {key_of(annotation).expected}, not {text!r}.") from None


@click.command("agent")
@click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on.")  # noqa: S104
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port; 0 takes a free one.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="BULKHEAD_AGENT_STATE_DIR",
    help="Folder for key, certificate and logs [BULKHEAD_AGENT_STATE_DIR].",
)
@click.option(
    "--memory-budget",
    "budget",
    default="auto",
    show_default=True,
    callback=_check_budget,
    metavar="SIZE",
    help="What all ranks here may hold: bytes, 12GB, 75%, or auto.",
)
@click.option(
    "--lease",
    "lease_s",
    default="10s",
    show_default=True,
    callback=_check_lease,
    metavar="TIME",
    help="Ranks whose gateway is silent for so long are ended.",
)
@click.option("--certificate", help="Certificate in PEM [one that the agent makes].")
@click.option("--certificate-key", help="Its key, in PEM and without a password.")
@log_level_option
@log_to_option
def agent_command(
    *,
    host: str,
    port: int,
    state_dir: Path | None,
    budget: int | str,
    lease_s: float,
    certificate: str | None,
    certificate_key: str | None,
    log_level: str,
    log_to: str,
) -> None:
    """Let a gateway on another host have ranks of its models here.

    The first start makes a key and a certificate in the state folder, and says what belongs in the
    gateway's configuration. Prints one line with the address once it serves.
    """
    if (certificate is None) != (certificate_key is None):
        _fail(["--certificate and --certificate-key go together."], status=2)
    # A gateway may run here as well, in a folder of its own.
    folder = StateDir(state_dir or default_state_dir() / "agent")
    try:
        folder.acquire()
        key_path, own_certificate = folder.path / "agent.key", folder.path / "agent.crt"
        is_new = not key_path.exists()
        key = ensured_admin_key(key_path)
        if certificate is None or certificate_key is None:
            files = own_certificate, folder.path / "agent-tls.key"
            ensured_certificate(*files, socket.gethostname())
        else:
            files = expand_home(certificate), expand_home(certificate_key)
        certificates = Certificates(*files, folder.served_path)
        fingerprint = fingerprint_of_file(files[0])
        listener = bind(host, port)
    except (StateDirError, CertificateError, PortTakenError) as error:
        _fail([str(error)], status=1)
    except OSError as error:
        _fail([f"The state folder {folder.path} can't be used: {error}."], status=1)
    with gateway_logs(folder, (), log_level, to_stderr=log_to == "stderr"):
        try:
            raise_file_limit()
        except (OSError, ValueError) as error:
            logger.warning("The limit of open files stays as it is: %s", error)
        terms = AgentTerms(budget_bytes(MemorySettings(budget=budget)), lease_s)
        logger.info(
            "Ranks may hold %s here; the key is in %s, the certificate's fingerprint is %s",
            format_size(terms.budget_bytes),
            key_path,
            fingerprint,
        )
        if is_new:
            host, port = listener.getsockname()[:2]
            for line in first_steps(host, port, socket.gethostname(), key_path, fingerprint):
                click.echo(line, err=True)
        server.run(terms, folder, listener, key, certificates)


def first_steps(host: str, port: int, name: str, key_path: Path, fingerprint: str) -> Iterator[str]:
    """What a gateway is to know of an agent that listens at an address of this machine; `name` is
    the machine's, which leads there if it listens at all of them.
    """
    table = name.partition(".")[0] or "other"
    if is_loopback(host):
        key_file = str(key_path)
        yield "The first start has made a key. This machine alone reaches the agent here;"
        yield "let the configuration of its gateway say:"
    else:
        key_file = f"~/{table}.key"
        yield "The first start has made a key. On the gateway's host, copy it:"
        yield f"  scp {shlex.quote(f'{name}:{key_path}')} {key_file}"
        yield "and let its configuration say:"
    reached = name if ip_address(host).is_unspecified else host
    yield f"  [hosts.{table}]"
    yield f'  url = "{url(reached, port, tls=True)}"'
    yield f"  key_file = {toml_text(key_file)}"
    yield f'  fingerprint = "{fingerprint}"'


def _fail(mistakes: Iterable[object], *, status: int) -> NoReturn:
    for mistake in mistakes:
        click.echo(f"bulkhead: {printable(str(mistake))}", err=True)
    sys.exit(status)
