"""A gateway that other machines can reach: on every address, by TLS, with keys."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from click.testing import CliRunner

from gateway.access.api_key import KeyTerms
from gateway.access.key_file import KeyFile
from gateway.cli import main
from gateway.config.settings import Flags
from gateway.doctor.gateway import look_at_gateway
from gateway.doctor.installation import Installation
from gateway.doctor.network import look_at_network
from gateway.system.tls import trusting
from tests.support.certificates import write_certificate
from tests.support.edge import shortened
from tests.support.gateway import Gateway, chat_body, eventually
from tests.support.raw_http import parse, read_all, send


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Gateway]:
    certificate, key = write_certificate(folder)
    secrets = []

    def prepare(state_dir: Path) -> None:
        secrets.append(KeyFile(state_dir / "keys.json").add("laptop", KeyTerms(), 1.0)[1])

    running = Gateway(
        "--host",
        "0.0.0.0",
        config=f'[gateway]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n',
        prepare=prepare,
        verify=trusting(str(certificate)),
    )
    running.client.headers["authorization"] = f"Bearer {secrets[0]}"
    try:
        yield running
    finally:
        status = running.stop()
    assert status == 0, running.log


def _port(gateway: Gateway) -> int:
    return urlsplit(gateway.url).port or 0


def _own_address() -> str:
    """One of this machine that is not loopback, if it has any."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: it is only asked which address would be taken.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def _tls(gateway: Gateway, folder: Path) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", _port(gateway)), 60)
    return trusting(str(folder / "tls.crt")).wrap_socket(plain, server_hostname="mac.example")


def test_serves_others_by_tls_with_a_key(gateway: Gateway, folder: Path) -> None:
    assert gateway.url.startswith("https://0.0.0.0:")
    trust = trusting(str(folder / "tls.crt"))
    with httpx.Client(verify=trust, timeout=120, headers=gateway.client.headers) as client:
        base = f"https://{_own_address()}:{_port(gateway)}"
        answer = client.post(
            f"{base}/v1/chat/completions", json=chat_body("Hi", max_tokens=2, stream=True)
        )
        assert (answer.status_code, answer.text.endswith("data: [DONE]\n\n")) == (200, True)
        del client.headers["authorization"]
        assert client.get(f"{base}/v1/models").status_code == 401
        assert client.get(f"{base}/livez").status_code == 200


def test_a_bent_name_is_refused_whatever_it_brings(gateway: Gateway) -> None:
    for host in ("evil.example", f"{_own_address()}.evil.example"):
        for path in ("/livez", "/v1/models", "/ui/"):
            assert gateway.client.get(path, headers={"host": host}).status_code == 403
    for host in (_own_address(), socket.gethostname(), "localhost"):
        assert gateway.client.get("/v1/models", headers={"host": host}).status_code == 200
    page = {"host": "192.168.1.7:1", "origin": "http://192.168.1.8:1"}
    assert gateway.client.get("/livez", headers=page).status_code == 403


def test_no_secret_goes_in_plain_text(gateway: Gateway) -> None:
    """Plain HTTP gets no answer, and a certificate that nobody vouches for isn't taken."""
    with socket.create_connection(("127.0.0.1", _port(gateway)), 60) as connection:
        send(connection, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/1.1 200" not in read_all(connection)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"https://127.0.0.1:{_port(gateway)}/livez")


def test_garbage_is_answered_in_tls(gateway: Gateway, folder: Path) -> None:
    for data in (b"GARBAGE\r\n\r\n", b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n"):
        with _tls(gateway, folder) as connection:
            connection.sendall(data)
            answer = parse(read_all(connection))
        assert (answer.status, answer.error["code"]) == (400, "invalid_request_error")


def test_commands_of_this_account_find_it(gateway: Gateway) -> None:
    nothing = {"BULKHEAD_URL": None, "BULKHEAD_ADMIN_KEY": None}
    here = {**nothing, "BULKHEAD_STATE_DIR": str(gateway.state_dir)}
    found = CliRunner().invoke(main, ["status"], env=here)
    assert found.exit_code == 0, found.output
    assert f"https://127.0.0.1:{_port(gateway)}" in found.output
    doctor = Installation(Flags(), {"BULKHEAD_STATE_DIR": str(gateway.state_dir)})
    (serves,) = look_at_gateway(doctor)
    assert (serves.severity, f"https://127.0.0.1:{_port(gateway)}" in serves.evidence) == (
        "ok",
        True,
    )
    (reach,) = look_at_network(doctor)
    assert reach.evidence == "Other machines can reach 0.0.0.0, by TLS."
    # The admin key goes to the gateway of its folder and nowhere else.
    named = {**here, "BULKHEAD_URL": f"https://localhost:{_port(gateway)}"}
    found = CliRunner().invoke(main, ["status"], env=named)
    assert (found.exit_code, f"https://127.0.0.1:{_port(gateway)}" in found.output) == (0, True)
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        squatter.settimeout(60)
        url = f"http://127.0.0.1:{squatter.getsockname()[1]}"
        env = {**here, "BULKHEAD_URL": url}
        asking = threading.Thread(
            target=CliRunner().invoke, args=(main, ["status"]), kwargs={"env": env}
        )
        asking.start()
        connection, _ = squatter.accept()
        received = connection.recv(65536)
        connection.close()
        asking.join(120)
    assert received.startswith(b"GET /admin/v1/status")
    assert b"bulkhead-" not in received


def test_a_command_that_trusts_no_certificate_says_so(gateway: Gateway, tmp_path: Path) -> None:
    url = f"https://127.0.0.1:{_port(gateway)}"
    nothing = {"BULKHEAD_STATE_DIR": str(tmp_path), "BULKHEAD_ADMIN_KEY": None}
    found = CliRunner().invoke(main, ["status", "--url", url], env=nothing)
    assert found.exit_code == 3
    assert "not trusted" in found.stderr
    assert "No gateway" not in found.stderr


def test_a_command_takes_what_the_system_trusts(
    gateway: Gateway, folder: Path, tmp_path: Path
) -> None:
    elsewhere = {
        "BULKHEAD_STATE_DIR": str(tmp_path),
        "BULKHEAD_URL": f"https://127.0.0.1:{_port(gateway)}",
        "BULKHEAD_ADMIN_KEY": (gateway.state_dir / "admin.key").read_text().strip(),
        "SSL_CERT_FILE": str(folder / "tls.crt"),
    }
    found = CliRunner().invoke(main, ["status"], env=elsewhere)
    assert found.exit_code == 0, found.output


def test_a_renewed_certificate_is_taken_by_a_reload(gateway: Gateway, folder: Path) -> None:
    admin = {"x-api-key": (gateway.state_dir / "admin.key").read_text().strip()}
    admin["authorization"] = ""
    good = (folder / "tls.key").read_bytes()
    (folder / "tls.key").write_text("-----BEGIN NOTHING-----\n")
    refused = gateway.client.post("/admin/v1/reload", headers=admin)
    assert (refused.status_code, "tls_certificate" in refused.text) == (400, True)
    (folder / "tls.key").write_bytes(good)
    with _tls(gateway, folder) as connection:
        before = connection.getpeercert(binary_form=True)
    write_certificate(folder)
    # Its file is another one already, and commands reach the gateway all the same.
    here = {"BULKHEAD_URL": None, "BULKHEAD_ADMIN_KEY": None}
    here["BULKHEAD_STATE_DIR"] = str(gateway.state_dir)
    for _ in range(2):
        reloaded = CliRunner().invoke(main, ["config", "reload"], env=here)
        assert reloaded.exit_code == 0, reloaded.output
    with _tls(gateway, folder) as connection:
        assert connection.getpeercert(binary_form=True) != before
    # Connections that are there go on.
    assert gateway.client.get("/v1/models").status_code == 200


def test_unfinished_handshakes_cost_other_clients_nothing(
    tmp_path: Path, start_gateway: Callable[..., Gateway]
) -> None:
    """Silent, or in the middle of a first message: they make place at once, and have a deadline."""
    certificate, key = write_certificate(tmp_path)
    config = f'[gateway]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
    running = start_gateway(
        config=f"{config}max_connections = 8\n",
        environment=shortened(tmp_path / "site", seconds=3.0),
        verify=trusting(str(certificate)),
    )
    assert running.client.get("/livez").status_code == 200
    running.client.close()
    process = psutil.Process(running.pid)
    # Other descriptors come and go: a gateway that has just started looks around.
    eventually(lambda: len(process.net_connections("tcp")) == 1)
    with contextlib.ExitStack() as stack:
        stalled = []
        for number in range(60):
            connection = socket.create_connection(("127.0.0.1", _port(running)), 60)
            stack.enter_context(connection)
            stalled.append(connection)
            if number % 2:
                connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01")
        with httpx.Client(verify=trusting(str(certificate)), timeout=60) as client:
            assert client.get(f"https://127.0.0.1:{_port(running)}/livez").status_code == 200
        for connection in stalled:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    eventually(lambda: len(process.net_connections("tcp")) == 1)
    assert "Traceback" not in running.log
