from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.service.definition import Owner
from tests.support.folders import short_folder
from tests.support.ports import free_port
from tests.support.service_managers import ServiceManagers


@pytest.fixture
def home() -> Iterator[Path]:
    """A home of its own. Short, since the paths of sockets are bounded; pytest's are not."""
    with short_folder(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def account(home: Path) -> Owner:
    return Owner(pwd.getpwuid(os.geteuid()).pw_name, os.geteuid(), os.getegid(), home)


@pytest.fixture
def managers(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceManagers]:
    found = ServiceManagers(home / "managers")
    monkeypatch.setenv("PATH", found.path)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "BULKHEAD_CONFIG", "BULKHEAD_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    yield found
    found.close()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def config(home: Path, port: int) -> Path:
    path = home / "config.toml"
    path.write_text(
        f"""
            [gateway]
            port = {port}
            drain_s = 1.0
            [workers]
            spare = 0
            [models.demo]
            path = "demo"
        """,
        "utf-8",
    )
    return path
