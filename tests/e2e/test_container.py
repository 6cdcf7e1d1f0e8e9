"""Open WebUI in a container: what the refusal says, and what docs/clients.md says, lets it in."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import httpx
import yaml

from tests.docs.fences import ROOT, fences
from tests.support.gateway import BULKHEAD, Gateway

HOST = {"host": "host.docker.internal:8642"}


def test_refusals_remedy_lets_a_container_in(tmp_path: Path) -> None:
    """In that order, with a gateway that was started without any configuration."""
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "BULKHEAD_CONFIG": ""}
    gateway = Gateway(environment=home)
    try:
        refused = gateway.client.get("/v1/models", headers=HOST)
        assert refused.status_code == 403
        said = refused.json()["error"]["message"]
        assert "is refused: it is no name of this machine" in said
        line, reload = re.search(r"allowed_hosts = \[.*?\]", said), "`bulkhead config reload`"
        assert line is not None
        assert said.index("`bulkhead key add NAME`") < line.start() < said.index(reload)

        environment = os.environ | home | {"BULKHEAD_STATE_DIR": str(gateway.state_dir)}

        def bulkhead(*arguments: str) -> str:
            done = subprocess.run(
                [BULKHEAD, *arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        key = bulkhead("key", "add", "open-webui")
        config = tmp_path / "bulkhead" / "config.toml"
        config.parent.mkdir()
        config.write_text(f"[gateway]\n{line[0]}\n")
        bulkhead("config", "reload")
        with httpx.Client(base_url=gateway.url, headers=HOST, timeout=60) as container:
            assert container.get("/v1/models").status_code == 401
            with_key = {"authorization": f"Bearer {key}"}
            assert container.get("/v1/models", headers=with_key).status_code == 200
    finally:
        gateway.stop()


def test_the_page_has_what_the_refusal_wants() -> None:
    blocks = fences(ROOT / "docs" / "clients.md")
    (compose,) = (yaml.safe_load(block.text) for block in blocks if block.kind == "yaml")
    (service,) = compose["services"].values()
    url = httpx.URL(service["environment"]["OPENAI_API_BASE_URL"])
    assert url.path == "/v1"
    assert service["extra_hosts"] == [f"{url.host}:host-gateway"]
    hosts = [
        tomllib.loads(fence.text).get("gateway", {}).get("allowed_hosts")
        for fence in blocks
        if fence.kind == "toml"
    ]
    assert [host for host in hosts if host] == [[url.host]] * 2
    names = re.findall(r"\$\{(\w+)\}", service["environment"]["OPENAI_API_KEY"])
    made = f'=$(bulkhead key add open-webui) && (umask 077; echo "{names[0]}=$'
    assert any(made in block.text for block in blocks)
