"""What the doctor says of upstreams: each is asked, within its time, and never twice the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.config.settings import Flags
from gateway.doctor.finding import Finding, Severity
from gateway.doctor.installation import Installation
from gateway.doctor.upstreams import judge_refusal, look_at_upstreams
from tests.support.certificates import lasting_certificate, write_certificate
from tests.support.gateway import Gateway, eventually
from tests.support.ports import free_port
from tests.support.raw_server import Handler, whole
from tests.support.upstreams import stand_ins


@pytest.fixture(scope="module")
def box() -> Iterator[Gateway]:
    """A Bulkhead with a certificate and a key."""
    certificate, key = lasting_certificate()
    tls = f'[gateway]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
    with ExitStack() as stack:
        gateway = Gateway(config=tls, verify=False)
        stack.callback(gateway.stop)
        yield gateway


def look(config: str, folder: Path, state_dir: Path | None = None) -> list[Finding]:
    (path := folder / "doctor.toml").write_text(config)
    flags = Flags(config=path, state_dir=state_dir or folder / "state")
    return list(look_at_upstreams(Installation(flags, {})))


def look_at(box: Gateway, folder: Path, *lines: str) -> Finding:
    table = "\n".join(("[upstreams.box]", f'url = "{box.url}/v1"', *lines))
    (found,) = look(table, folder)
    assert found.subject == "box"
    return found


def test_another_bulkhead_with_a_certificate_and_a_key(box: Gateway, tmp_path: Path) -> None:
    certificate = f'certificate = "{lasting_certificate()[0]}"'
    found = look_at(box, tmp_path, certificate)
    assert found.severity is Severity.OK, found
    assert "answers (Bulkhead 0." in found.evidence
    assert "1 model, of which 0 ready" in found.evidence

    found = look_at(box, tmp_path)
    assert "shows a certificate that isn't trusted (self" in found.evidence
    assert "Let certificate name a copy" in str(found.remedy)
    other = write_certificate(tmp_path, "other")[0]
    assert "isn't trusted" in look_at(box, tmp_path, f'certificate = "{other}"').evidence

    made = box.client.post("/admin/v1/keys", json={"name": "gateway"}).json()["key"]
    found = look_at(box, tmp_path, certificate)
    assert "wants a key, and key_file names none" in found.evidence
    assert "bulkhead key add NAME" in str(found.remedy)
    (file := tmp_path / "box.key").touch(0o600)
    key_file = f'key_file = "{file}"'
    file.write_text("bk-wrong")
    found = look_at(box, tmp_path, certificate, key_file)
    assert f"doesn't take the key in {file}" in found.evidence
    file.write_text(made)
    assert look_at(box, tmp_path, certificate, key_file).severity is Severity.OK
    file.chmod(0o644)
    found = look_at(box, tmp_path, certificate, key_file)
    assert found.severity is Severity.ERROR
    assert "this account must be able to read" in str(found.remedy)


def saying(answer: bytes) -> Handler:
    async def say(
        _head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(answer)

    return say


def test_servers_that_are_no_good(tmp_path: Path) -> None:
    """All are asked at once: one that hangs holds the others up for no longer than its time."""
    answers = {
        "half": b"HTTP/1.1 200 OK\r\ncontent-ty",
        "web": whole(b"<html>", b"text/html"),
        "moved": b"HTTP/1.1 308 Oh\r\nlocation: https://b/v1/models\r\ncontent-length: 0\r\n\r\n",
        "empty": whole(b'{"data": []}'),
        "vllm": whole(b'{"data": [{"id": "a"}, {"id": "b"}]}'),
    }

    async def run() -> dict[str | None, Finding]:
        handlers = {name: saying(answer) for name, answer in answers.items()}
        async with stand_ins(handlers) as (table, _):
            gone = f'[upstreams.gone]\nurl = "http://127.0.0.1:{free_port()}/v1"\n'
            found = await asyncio.to_thread(look, table + gone, tmp_path)
        return {finding.subject: finding for finding in found}

    found = asyncio.run(run())
    evidence = {name: finding.evidence for name, finding in found.items()}
    assert "did not list its models within 5 s" in evidence["half"]
    assert "answered with no list of models" in evidence["web"]
    assert "redirects to 'https://b/v1/models'" in evidence["moved"]
    assert "Correct url" in str(found["moved"].remedy)
    assert "can't be reached" in evidence["gone"]
    assert "/v1/models" in str(found["gone"].remedy)
    assert (found["empty"].severity, found["vllm"].severity) == (Severity.WARNING, Severity.OK)
    assert "(a server): 2 models." in evidence["vllm"]


def test_upstream_that_is_the_gateway_itself_is_an_error(tmp_path: Path) -> None:
    gateway = Gateway(config="")
    try:
        here = gateway.url.replace("127.0.0.1", "localhost")
        found = look(f'[upstreams.me]\nurl = "{here}"\n', tmp_path, gateway.state_dir)
        assert [finding.severity for finding in found] == [Severity.ERROR]
        assert "this gateway itself, under another address" in found[0].evidence
        assert "Take this table out" in str(found[0].remedy)
    finally:
        gateway.stop()


def test_refusal_by_the_running_gateway_is_an_error(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    port = free_port()
    gateway = start_gateway(config=f'[upstreams.box]\nurl = "http://127.0.0.1:{port}/v1"\n')
    flags = Flags(config=gateway.config_path, state_dir=gateway.state_dir)
    eventually(lambda: "can't be reached" in Installation(flags, {}).running().refused["box"])
    finding = judge_refusal("box", "can't be reached")
    assert finding.severity is Severity.ERROR
    assert "the running gateway sends it no requests: can't be reached." in finding.evidence


def test_none(tmp_path: Path) -> None:
    (found,) = look("", tmp_path)
    assert found.severity is Severity.OK
