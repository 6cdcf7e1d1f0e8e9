"""An operator's mistake with rights: what other accounts can read, write and make of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.cli.canned import CannedGateway
from tests.support.gateway import Gateway, eventually


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _open_to_others(folder: Path) -> dict[str, str]:
    """What others have rights to, below folders that are open to them."""
    return {
        str(path.relative_to(folder)): f"{mode:04o}"
        for path in folder.rglob("*")
        if (mode := stat.S_IMODE(path.lstat().st_mode)) & 0o077 and not path.is_socket()
    }


def test_no_umask_and_no_folder_that_was_there_opens_the_state_to_others() -> None:
    with _umask(0):
        gateway = Gateway(prepare=lambda folder: folder.chmod(0o755))
    try:
        gateway.load()
        gateway.say("hi")
        gateway.client.post("/v1/responses", json={"model": "demo", "input": "hi"})
        key = gateway.client.post("/admin/v1/keys", json={"name": "a"}).raise_for_status()
        assert key.json()["key"]
        eventually(lambda: (gateway.state_dir / "logs" / "demo.log").exists())
        assert (gateway.state_dir / "address.json").exists()
        assert _open_to_others(gateway.state_dir) == {}
    finally:
        gateway.stop()


@pytest.mark.parametrize(("before", "after"), [(0, 0o022), (0o020, 0o022), (0o002, 0o002)])
def test_a_umask_that_lets_everybody_write_is_a_mistake(before: int, after: int) -> None:
    with _umask(before):
        CliRunner().invoke(main, ["status", "--help"])
        assert os.umask(0) == after


def test_no_key_goes_to_an_address_that_others_may_have_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway = Gateway()
    with CannedGateway() as canned:
        try:
            gateway.client.post("/admin/v1/keys", json={"name": "a"}).raise_for_status()
            monkeypatch.setenv("BULKHEAD_STATE_DIR", str(gateway.state_dir))
            file = gateway.state_dir / "address.json"
            file.write_text(f'{{"url": "{canned.url}", "pid": {gateway.pid}}}')
            file.chmod(0o666)
            done = CliRunner().invoke(main, ["status"])
            assert not canned.headers
            assert f"others may write to it (its mode is 0666): `chmod go-w {file}`" in done.stderr
            file.chmod(0o600)
            CliRunner().invoke(main, ["status"])
            assert canned.headers, "this account may"
        finally:
            gateway.stop()


def test_no_program_runs_that_others_may_have_named() -> None:
    gateway = Gateway()
    try:
        file = gateway.state_dir / "successor.json"
        file.write_text('{"python": "/bin/false"}')
        file.chmod(0o666)
        refused = gateway.client.post("/admin/v1/upgrade")
        assert refused.status_code == 503
        assert f"`chmod go-w {file}`" in refused.json()["error"]["message"]
    finally:
        gateway.stop()
