from __future__ import annotations

import json
import logging
import re
import signal
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.system.log_files import RotatedFile
from tests.cli.conftest import SPACED_ID
from tests.cli.terminal import bulkhead, started, terminal
from tests.support.faults import wrapped_python
from tests.support.folders import short_folder
from tests.support.gateway import START_S, Gateway, eventually

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
STARTED = r"-- worker started: pid \d+, incarnation \d+ --"
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def talked(fleet: Gateway) -> Gateway:
    """The fleet, after its talker has talked."""
    fleet.load(SPACED_ID)
    return fleet


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a gateway that was started twice, and is stopped; with its logs."""
    place = tmp_path_factory.mktemp("interpreters")
    talker = wrapped_python(place / "talker", r"printf 'a\tb\033[31mred\033[0m\007 ü%090d\n' 7")
    config = f'[models.talker]\npath = "demo"\naliases = ["other"]\npython = "{talker}"\n'
    with short_folder() as short:
        state_dir = Path(short) / "state"
        (Path(short) / "config.toml").write_text(config)
        service: Any = {"models": (), "config": config, "environment": {"BULKHEAD_LOG": "file"}}
        log = state_dir / "logs" / "talker.log"
        for spoken in (1, 2):
            _talk(Gateway("--state-dir", str(state_dir), **service), log, spoken)
        yield state_dir


def _talk(running: Gateway, log: Path, times: int) -> None:
    running.order("load", "talker", wait=False).raise_for_status()
    eventually(lambda: log.exists() and log.read_text().count("red") == times, START_S)
    assert running.stop() == 0
    assert running.log == "", "stderr of a service is for crashes"


def _without_controls(text: str) -> bool:
    return not any(unicodedata.category(item) == "Cc" for item in text.replace("\n", ""))


# Over HTTP


def test_prints_what_the_worker_printed_without_colours(talked: Gateway) -> None:
    done = bulkhead("logs", SPACED_ID, url=talked.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(rf"{TIME}{STARTED}\n{TIME}first\n{TIME}second\n{TIME}third\n", done.stdout)


def test_takes_an_alias_and_a_number_of_lines(talked: Gateway) -> None:
    done = bulkhead("logs", "--lines", "1", "other", url=talked.url)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert bulkhead("logs", "-n", "0", "other", url=talked.url).stdout == ""
    assert bulkhead("logs", "--since", "2100-01-01", "other", url=talked.url).stdout == ""
    assert "third" in bulkhead("logs", "--since", "1h", "other", url=talked.url).stdout


def test_follows_until_interrupted(talked: Gateway) -> None:
    with started("logs", "--follow", "-n", "1", SPACED_ID, url=talked.url) as following:
        assert following.stdout is not None
        following.stdout.readline()
        talked.order("restart", SPACED_ID).raise_for_status()
        new = "".join(following.stdout.readline() for _ in range(4))
        assert re.fullmatch(rf"{TIME}{STARTED}\n{TIME}first\n{TIME}second\n{TIME}third\n", new)
        following.send_signal(signal.SIGINT)
        _, stderr = following.communicate(timeout=60)
    assert (following.returncode, stderr) == (130, "")


def test_the_log_of_a_gateway_elsewhere(talked: Gateway) -> None:
    done = bulkhead("logs", "--json", "--since", "1h", url=talked.url)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    of_model = [line for line in lines if line.get("model") == SPACED_ID]
    ready = next(line for line in of_model if line.get("event") == "ready")
    assert (ready["level"], ready["logger"]) == ("info", "gateway.system.events")
    assert ready["load_s"] > 0
    with started("logs", "-f", "-n", "1", url=talked.url) as following:
        assert following.stdout is not None
        assert re.match(TIME, following.stdout.readline())
        talked.order("restart", SPACED_ID).raise_for_status()
        new = (following.stdout.readline() for _ in range(100))
        assert any(re.match(rf"{TIME}INFO    event=ready ", line) for line in new)


def test_a_wrong_time_over_http(talked: Gateway) -> None:
    answer = talked.client.get("/admin/v1/logs", params={"since": "noon"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "since")


# From files, the gateway being down unless the test says otherwise


def test_a_model_prints_to_one_log_across_gateways(folder: Path) -> None:
    done = bulkhead("logs", "talker", "--state-dir", str(folder), url=NOWHERE)
    assert (done.returncode, done.stderr) == (0, "")
    spoken = rf"{TIME}{STARTED}\n{TIME}a       bred\\x07 ü0{{89}}7\n"
    assert re.fullmatch(f"{spoken}{spoken}", done.stdout)
    assert _without_controls(done.stdout)


def test_the_gateways_own_log_in_a_pipe(folder: Path) -> None:
    done = bulkhead("logs", "-n", "1000", "--state-dir", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert all(re.match(rf"{TIME}[A-Z]+ +\S", line) for line in done.stdout.splitlines())
    assert done.stdout.count(" Bulkhead ") == 2
    assert done.stdout.count("event=start model=talker pid=") == 2
    assert done.stdout.endswith(" Stopped\n")
    assert _without_controls(done.stdout)


@pytest.mark.parametrize("model", [(), ("talker",)])
def test_json_lines(folder: Path, model: tuple[str, ...]) -> None:
    done = bulkhead("logs", *model, "--json", "-n", "1000", "--state-dir", str(folder))
    assert _without_controls(done.stdout)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(line["time"].endswith("Z") for line in lines)
    if model:
        assert lines[1]["text"] == "a\tb\x1b[31mred\x1b[0m\x07 ü" + "7".zfill(90)
    else:
        exits = [line for line in lines if line.get("event") == "exit"]
        assert [line["expected"] for line in exits] == [True, True]


@pytest.mark.parametrize("model", [(), ("talker",)])
def test_a_terminal_gets_lines_for_people_within_its_width(
    folder: Path, model: tuple[str, ...]
) -> None:
    with terminal("logs", *model, "--state-dir", str(folder), url=NOWHERE) as screen:
        assert screen.exit_status() == 0
        lines = screen.screen.replace("\r\n", "\n").splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert _without_controls("\n".join(lines))
    assert re.match(TIME, lines[0])
    assert not any(line.startswith("{") for line in lines)
    assert any("000000" in line if model else "event=start" in line for line in lines)


def test_serve_logs_for_people_on_a_terminal() -> None:
    with short_folder() as folder:
        arguments = ("--model", "demo", "--port", "0", "--spare", "0", "--state-dir", folder)
        with terminal("serve", *arguments, url=NOWHERE) as screen:
            before = screen.expect("Bulkhead serves on ")
            assert re.match(rf"{TIME}INFO    Bulkhead \S+ starts, pid {screen.pid}\r\n", before)
            screen.type("\x03")
            assert screen.exit_status() == 0
            assert re.search(rf"\n{TIME}INFO    Stopped\r\n", screen.screen)
        written = (Path(folder) / "logs" / "gateway.log").read_text().splitlines()
    assert json.loads(written[-1])["message"] == "Stopped"


def test_levels_have_colours_on_a_terminal_alone(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "gateway.log"
    path.parent.mkdir()
    at = '{"time": "2026-01-31T12:30:00.000Z"'
    path.write_text(f'{at}, "level": "error", "logger": "a", "message": "m\\u001b[2J"}}\ntorn\n')
    with terminal("logs", "--state-dir", str(tmp_path), url=NOWHERE) as screen:
        assert screen.exit_status() == 0
        assert "\x1b[31m" in screen.screen
        assert r"m\x1b[2J" in screen.screen
        assert "\x1b[2J" not in screen.screen
    done = bulkhead("logs", "--state-dir", str(tmp_path))
    assert re.fullmatch(rf"{TIME}ERROR   m\\x1b\[2J\ntorn\n", done.stdout)
    as_json = bulkhead("logs", "--state-dir", str(tmp_path), "--json").stdout.splitlines()
    assert json.loads(as_json[0])["message"] == "m\x1b[2J"
    assert json.loads(as_json[1]) == {"time": None, "model": None, "text": "torn"}


def test_follows_across_rotation_and_gateways(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "demo.log"
    path.parent.mkdir()
    path.write_text("2026-01-31T12:30:00.000Z before\n")
    with started("logs", "-f", "demo", "--state-dir", str(tmp_path)) as following:
        assert following.stdout is not None
        assert following.stdout.readline().endswith(" before\n")
        for gateway in range(2):
            file = RotatedFile(path, pytest.fail, file_bytes=100)
            for number in range(10):
                line = f"2026-01-31T12:30:00.000Z {gateway} {number}"
                file.handle(logging.LogRecord("test", logging.INFO, "", 0, line, None, None))
                assert following.stdout.readline().endswith(f" {gateway} {number}\n")
            file.close()
        assert path.with_name("demo.log.2").exists()
        following.send_signal(signal.SIGINT)
        _, stderr = following.communicate(timeout=60)
    assert (following.returncode, stderr) == (130, "")


def test_reads_the_files_of_a_gateway_that_runs(gateway: Gateway) -> None:
    gateway.load()
    folder = ("--state-dir", str(gateway.state_dir))
    assert re.match(TIME + STARTED, bulkhead("logs", "demo", *folder, url=NOWHERE).stdout)
    assert "event=ready model=demo" in bulkhead("logs", *folder, url=NOWHERE).stdout


def test_the_folder_is_the_one_that_serve_would_use(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'[gateway]\nstate_dir = "{folder}"\n'
        '[models.talker]\npath = "demo"\naliases = ["other"]\n[models.silent]\npath = "demo"\n'
    )

    def logs(*arguments: str, **variables: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["logs", *arguments], env=variables)
        return done.exit_code, done.stdout

    status, text = logs("other", BULKHEAD_CONFIG=str(config))
    assert (status, text.count("worker started")) == (0, 2)
    assert logs("talker", BULKHEAD_STATE_DIR=str(folder)) == (0, text)
    config.write_text("[gateway]\nprot = 1\n")
    both = {"BULKHEAD_CONFIG": str(config), "BULKHEAD_STATE_DIR": str(folder)}
    assert logs("talker", **both) == (0, text)
    assert logs("talker", "--state-dir", str(folder), BULKHEAD_CONFIG=str(config)) == (0, text)


def test_a_model_of_the_configuration_may_have_no_log_yet(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[models.silent]\npath = "demo"\n')
    arguments = ["logs", "silent", "--state-dir", str(folder)]
    done = CliRunner().invoke(main, arguments, env={"BULKHEAD_CONFIG": str(config)})
    assert (done.exit_code, done.stdout) == (0, "")


def test_missing_log_has_an_error(folder: Path, tmp_path: Path) -> None:
    missing = bulkhead("logs", "missing", "--state-dir", str(folder))
    assert (missing.returncode, missing.stdout) == (4, "")
    assert missing.stderr.startswith(f"bulkhead: There is no log of a model 'missing' in {folder}")
    nothing = bulkhead("logs", "--state-dir", str(tmp_path))
    assert (nothing.returncode, nothing.stdout) == (3, "")
    assert nothing.stderr == f"bulkhead: There is no gateway's log in {tmp_path / 'logs'}.\n"


def test_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "logs" / "gateway.log").mkdir(parents=True)
    done = bulkhead("logs", "--state-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("gateway.log can't be read: Is a directory.\n")


def test_a_pipe_that_closes_early(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "gateway.log"
    path.parent.mkdir()
    path.write_text("one\n")
    with started("logs", "-f", "--state-dir", str(tmp_path)) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert following.stdout.readline() == "one\n"
        following.stdout.close()
        with path.open("a") as log:
            log.write("two\n")
        assert following.wait(120) == 1
        assert following.stderr.read() == ""


@pytest.mark.parametrize("text", ["noon", "-1h", ""])
def test_a_wrong_time(folder: Path, text: str) -> None:
    done = CliRunner().invoke(main, ["logs", "--since", text, "--state-dir", str(folder)])
    assert done.exit_code == 2
    assert "neither a time such as" in " ".join(done.stderr.split())
