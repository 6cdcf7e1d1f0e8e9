"""bulkhead agent"""

from __future__ import annotations

import logging
import shlex
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import click
from msgspec import Struct

from gateway.access.key_file import ensured_admin_key
from gateway.cli.failure import CommandError, WrongUseError
from gateway.cli.options import LogFlags, gathers, takes_log_flags
from gateway.config.key import UnexpectedError, key_of, read_value, time, toml_text
from gateway.config.model_folders import expand_home
from gateway.config.settings import MemorySettings
from gateway.config.tables import keys_of
from gateway.memory.fitting import budget_bytes
from gateway.server import agent_server as server
from gateway.server.agent_server import AgentTerms
from gateway.server.uvicorn_server import PortTakenError, bind
from gateway.system.log_lines import gateway_logs
from gateway.system.notation import format_size, is_loopback, url
from gateway.system.process_limits import raise_file_limit
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


class AgentFlags(Struct, frozen=True):
    """The options of `agent`. If `certificate` is None, the agent makes one at its first start."""

    host: str
    port: int
    state_dir: Path | None
    budget: int | str
    lease_s: float
    certificate: str | None
    certificate_key: str | None


class AgentFiles(NamedTuple):
    """The paths of the key that gateways must send, of the certificate, and of the TLS key."""

    key: Path
    certificate: Path
    certificate_key: Path


_takes_agent_flags: Final = gathers(
    AgentFlags,
    click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on."),  # noqa: S104
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=PORT,
        show_default=True,
        help="Port; 0 takes a free one.",
    ),
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        envvar="BULKHEAD_AGENT_STATE_DIR",
        help="Folder for key, certificate and logs [BULKHEAD_AGENT_STATE_DIR].",
    ),
    click.option(
        "--memory-budget",
        "budget",
        default="auto",
        show_default=True,
        callback=_check_budget,
        metavar="SIZE",
        help="The memory that all ranks here may hold: bytes, 12GB, 75%, or auto.",
    ),
    click.option(
        "--lease",
        "lease_s",
        default="10s",
        show_default=True,
        callback=_check_lease,
        metavar="TIME",
        help="End the ranks of a gateway that is silent for so long.",
    ),
    click.option("--certificate", help="Certificate in PEM [one that the agent makes]."),
    click.option("--certificate-key", help="The certificate's key, in PEM without a password."),
)


@click.command("agent")
@_takes_agent_flags
@takes_log_flags
def agent_command(log: LogFlags, flags: AgentFlags) -> None:
    """Let a gateway on another host run ranks of its models here.

    The first start makes a key and a certificate in the state folder, and prints the lines that
    the gateway's configuration needs. The agent prints one line with its address once it serves.
    """
    if (flags.certificate is None) != (flags.certificate_key is None):
        raise WrongUseError("--certificate and --certificate-key go together.")
    # A gateway may also run on this machine: the default folder itself is the gateway's.
    folder = StateDir(flags.state_dir or default_state_dir() / "agent")
    try:
        folder.acquire()
        files = _files(flags, folder)
        is_new = not files.key.exists()
        key = ensured_admin_key(files.key)
        if flags.certificate is None:
            ensured_certificate(files.certificate, files.certificate_key, socket.gethostname())
        certificates = Certificates(files.certificate, files.certificate_key, folder.served_path)
        fingerprint = fingerprint_of_file(files.certificate)
        listener = bind(flags.host, flags.port)
    except (StateDirError, CertificateError, PortTakenError) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"The state folder {folder.path} can't be used: {error}.") from error
    with gateway_logs(folder, (), log.log_level, to_stderr=log.to_stderr):
        try:
            raise_file_limit()
        except (OSError, ValueError) as error:
            logger.warning("The limit of open files stays as it is: %s", error)
        terms = AgentTerms(budget_bytes(MemorySettings(budget=flags.budget)), flags.lease_s)
        logger.info(
            "Ranks may hold %s here; the key is in %s, the certificate's fingerprint is %s",
            format_size(terms.budget_bytes),
            files.key,
            fingerprint,
        )
        if is_new:
            host, port = listener.getsockname()[:2]
            for line in first_steps(host, port, socket.gethostname(), files.key, fingerprint):
                click.echo(line, err=True)
        server.run(terms, folder, listener, key, certificates)


def _files(flags: AgentFlags, folder: StateDir) -> AgentFiles:
    key = folder.path / "agent.key"
    if flags.certificate is None or flags.certificate_key is None:
        return AgentFiles(key, folder.path / "agent.crt", folder.path / "agent-tls.key")
    return AgentFiles(key, expand_home(flags.certificate), expand_home(flags.certificate_key))


def first_steps(host: str, port: int, name: str, key_path: Path, fingerprint: str) -> Iterator[str]:
    """Yield the steps that let a gateway use this agent: the copy of the key, and the lines for the
    gateway's configuration. The agent listens at `host` and `port`; `name` is this machine's name.
    """
    table = name.partition(".")[0] or "other"
    if is_loopback(host):
        key_file = str(key_path)
        yield "The first start has made a key. Only this machine reaches the agent at this address."
        yield "Add to the configuration of its gateway:"
    else:
        key_file = f"~/{table}.key"
        yield "The first start has made a key. On the gateway's host, copy it:"
        yield f"  scp {shlex.quote(f'{name}:{key_path}')} {key_file}"
        yield "and add to the gateway's configuration:"
    reached = name if ip_address(host).is_unspecified else host
    yield f"  [hosts.{table}]"
    yield f'  url = "{url(reached, port, tls=True)}"'
    yield f"  key_file = {toml_text(key_file)}"
    yield f'  fingerprint = "{fingerprint}"'
