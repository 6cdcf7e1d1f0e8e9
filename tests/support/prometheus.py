"""A real Prometheus and its tool, where there is one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.gateway import START_S, Gateway, eventually
from tests.support.ports import free_port

# Where .ci/prometheus puts it.
_BESIDE: Final = Path(sys.prefix) / "prometheus" / "usr" / "bin"
_PATIENCE_S: Final = 60.0


def program(name: str) -> str:
    """Its path; the test is skipped if there is none."""
    found = shutil.which(name) or shutil.which(name, path=str(_BESIDE))
    if found is None:
        pytest.skip(f"there is no {name}: `.ci/prometheus` fetches it on Debian")
    return found


class Prometheus:
    """Scrapes a gateway, by configurations that were written for one on its usual port."""

    def __init__(self, gateway: Gateway, folder: Path, *configurations: Path) -> None:
        jobs = [
            configuration.read_text("utf-8").split("scrape_configs:\n")[1]
            for configuration in configurations
        ]
        text = "scrape_configs:\n" + "".join(jobs)
        text = text.replace("127.0.0.1:8642", urlsplit(gateway.url).netloc).replace("10s", "1s")
        config = folder / "prometheus.yml"
        config.write_text(text, "utf-8")
        port = free_port()
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stderr=subprocess.DEVNULL,
        )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=_PATIENCE_S)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant; none while it starts, which it answers with 503."""
        answer = self._client.get("/api/v1/query", params={"query": expression})
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            return []
        assert answer.status_code == HTTPStatus.OK, f"{expression}: {answer.text}"
        result: list[dict[str, Any]] = json.loads(answer.text)["data"]["result"]
        return result

    def until_it_has(self, expression: str) -> list[dict[str, Any]]:
        def ask() -> list[dict[str, Any]] | None:
            try:
                return self.query(expression) or None
            except httpx.TransportError:
                return None

        samples: list[dict[str, Any]] = eventually(ask, START_S)
        return samples

    def stop(self) -> None:
        self._client.close()
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
