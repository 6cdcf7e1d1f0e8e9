"""Starts that can't work say why, at once, in one sentence, with a status."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import shapes
from tests.support.folders import short_folder
from tests.support.gateway import BULKHEAD, START_S, Gateway, eventually


def serve(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """(exit status, stderr) of a start that fails."""
    ended = subprocess.run(
        [BULKHEAD, "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(environment or {})},
    )
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


@pytest.fixture
def state() -> Iterator[tuple[str, ...]]:
    with short_folder() as folder:
        yield ("--port", "0", "--state-dir", str(Path(folder) / "s"))


def test_no_model(state: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[models]\ndiscover = []\n")
    status, text = serve(*state, "--config", str(path))
    assert status == 2
    assert "--model demo" in text


def test_unknown_folder(state: tuple[str, ...]) -> None:
    status, text = serve(*state, "--model", "/nowhere/at all")
    assert (status, "no model folder /nowhere/at all" in text) == (2, True)


@pytest.mark.slow
def test_models_that_are_not_there_leave_the_others_served(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    config = f"""
        [models.demo]
        path = "demo"
        [models.missing]
        path = "{tmp_path}/missing"
        [models.uncached]
        path = "owner/name"
        [models.bare]
        path = "demo"
        adapter = "{tmp_path}/adapter"
    """
    cache = {"HF_HUB_CACHE": str(tmp_path / "cache")}
    gateway = start_gateway(models=(), config=config, environment=cache)
    assert gateway.chat("Hello", "demo", max_tokens=3).status_code == 200
    for name, part in (
        ("missing", f"no model folder {tmp_path}/missing"),
        ("uncached", "bulkhead pull owner/name"),
        ("bare", f"no adapter's folder {tmp_path}/adapter"),
    ):
        eventually(
            lambda name=name, part=part: part in (gateway.model(name)["reason"] or ""), START_S
        )
        refused = gateway.chat("Hello", name)
        assert (refused.status_code, part in refused.text) == (503, True), refused.text
    # It is there now, and nobody need tell the gateway.
    shutil.copytree(shapes.DEMO, tmp_path / "missing")
    assert gateway.chat("Hello", "missing", max_tokens=3).status_code == 200


def test_repository_that_is_not_in_the_cache(state: tuple[str, ...], tmp_path: Path) -> None:
    status, text = serve(
        *state, "--model", "owner/name", environment={"HF_HUB_CACHE": str(tmp_path)}
    )
    assert (status, "bulkhead pull owner/name" in text) == (2, True)


def test_two_models_of_one_id(state: tuple[str, ...]) -> None:
    status, text = serve(*state, "--model", "demo", "--model", f"{shapes.DEMO}=demo")
    assert (status, '"demo"' in text) == (2, True)


def test_every_mistake_of_a_configuration_at_once(state: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '[gateway]\ndrain_s = -1\ncolour = "red"\n[memory]\nbudget = "much"\n[moon]\n[models.a]\n'
    )
    status, text = serve(*state, "--config", str(path))
    assert status == 2
    for part in ("gateway.drain_s", "gateway.colour", "moon", 'models."a".path'):
        assert part in text, part


def test_a_mistake_on_the_command_line_is_not_blamed_on_the_file(state: tuple[str, ...]) -> None:
    status, text = serve(*state, "--model", "demo", "--memory-budget", "much")
    assert (status, "--memory-budget" in text, ".toml" in text) == (2, True, False)


def test_a_configuration_that_is_not_there(state: tuple[str, ...]) -> None:
    status, text = serve(*state, "--config", "/nowhere.toml")
    assert (status, "/nowhere.toml" in text) == (2, True)


def test_port_taken(state: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, text = serve(*state[2:], "--port", str(port), "--model", "demo")
    assert status == 1
    assert f"Port {port}" in text
    assert "gateway" not in text


@pytest.mark.slow
def test_port_of_another_gateway(
    state: tuple[str, ...], start_gateway: Callable[..., Gateway]
) -> None:
    running = start_gateway()
    port = running.url.rpartition(":")[2]
    status, text = serve(*state[2:], "--port", port, "--model", "demo")
    assert (status, f"bulkhead status --url {running.url}" in text) == (1, True), text


def test_another_host_than_loopback(state: tuple[str, ...]) -> None:
    status, text = serve(*state, "--host", "0.0.0.0", "--model", "demo")
    assert (status, "loopback" in text) == (2, True)


def test_state_path_too_long(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    status, text = serve("--port", "0", "--state-dir", str(folder), "--model", "demo")
    assert status == 1
    assert "shorter state folder" in text


def test_state_folder_that_others_may_write_to(short_path: Path) -> None:
    short_path.chmod(0o777)
    status, text = serve("--port", "0", "--state-dir", str(short_path), "--model", "demo")
    assert (status, "chmod go-w" in text) == (1, True)


def test_a_pipe_where_a_worker_is_recorded(short_path: Path) -> None:
    (short_path / "workers").mkdir()
    os.mkfifo(short_path / "workers" / "1.json")
    status, text = serve("--port", "0", "--state-dir", str(short_path), "--model", "demo")
    assert (status, "workers/1.json is a named pipe" in text) == (1, True)


@pytest.mark.slow
def test_names_that_are_not_utf_8(state: tuple[str, ...], tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    status, text = serve("--port", "0", "--state-dir", folder, "--model", "demo")
    assert (status, "not UTF-8" in text) == (1, True)
    shutil.copytree(shapes.DEMO, folder)
    for model in (folder, f"{folder}=fine"):
        status, text = serve(*state, "--model", model)
        assert (status, "not UTF-8" in text) == (2, True)


@pytest.mark.slow
def test_an_id_of_two_lines(state: tuple[str, ...], tmp_path: Path) -> None:
    folder = shutil.copytree(shapes.DEMO, tmp_path / "two\nlines")
    for model in (str(folder), "demo=two\nlines", "demo=\x1b[2J"):
        status, text = serve(*state, "--model", model)
        assert (status, "one line without control characters" in text) == (2, True)


def test_second_gateway_on_a_state_folder(start_gateway: Callable[..., Gateway]) -> None:
    running = start_gateway()
    status, text = serve("--port", "0", "--state-dir", str(running.state_dir), "--model", "demo")
    assert status == 1
    assert f"pid {running.pid}" in text


@pytest.mark.slow
def test_a_repository_in_the_hugging_face_cache(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    repository = tmp_path / "models--owner--small-model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123abcd")
    shutil.copytree(shapes.DEMO, repository / "snapshots" / "0123abcd")
    running = start_gateway(
        models=("owner/small-model",), environment={"HF_HUB_CACHE": str(tmp_path)}
    )
    assert running.say("Hello", "small-model")


@pytest.mark.slow
def test_folder_names_with_spaces_and_other_letters(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    folder = shapes.sliding_window(tmp_path / "Größen & Modelle = 日本" / "mein modell")
    running = start_gateway(models=(f"{folder}", f"{folder}=zweites"))
    assert {model["id"] for model in running.status()["models"]} == {"mein modell", "zweites"}
    assert running.chat("Hello", "mein modell", max_tokens=3).status_code == 200
