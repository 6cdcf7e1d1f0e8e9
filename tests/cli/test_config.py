from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
import unicodedata
from pathlib import Path

import jsonschema
import pytest

from gateway.config.documents import example
from tests.cli.terminal import BULKHEAD, bulkhead, terminal

NOBODY = "http://127.0.0.1:1"
LONG_ID = "org/" + "long name " * 12
MISTAKEN = """\
[gateway]
prot = 1
drain_s = "five minutes"

[models.a]
path = "/nowhere"
aliases = [
  "b",
  3,
]
broken
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(f'[gateway]\nport = 1\ndrain_s = "5m"\n[models."{LONG_ID}"]\npath = "demo"\n')
    return path


@pytest.fixture
def mistaken(tmp_path: Path) -> Path:
    path = tmp_path / "mistaken.toml"
    path.write_text(MISTAKEN)
    return path


def _is_plain(text: str) -> bool:
    return all(item == "\n" or unicodedata.category(item) not in ("Cc", "Cs") for item in text)


def _on_screen(*arguments: str, status: int) -> list[str]:
    """The lines on a terminal, without what colours them."""
    with terminal(*arguments, url=NOBODY) as screen:
        assert screen.exit_status() == status
        return re.sub(r"\x1b\[[\d;]*m", "", screen.screen).replace("\r\n", "\n").splitlines()


class TestCheck:
    def test_a_good_file(self, file: Path) -> None:
        done = bulkhead("config", "check", "--config", str(file))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{file} is good: 1 model ({LONG_ID}).\n"
        done = bulkhead("config", "check", "--config", str(file), "--model", "demo", "--json")
        assert json.loads(done.stdout) == {
            "file": str(file),
            "mistakes": [],
            "cautions": [],
            "models": [LONG_ID, "demo"],
        }

    def test_every_mistake_in_a_line_of_its_own(self, mistaken: Path) -> None:
        done = bulkhead("config", "check", "--config", str(mistaken), "--host", "0.0.0.0")
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.splitlines() == [
            "--host: gateway.host: 0.0.0.0 is not loopback: without API keys the gateway listens "
            "on 127.0.0.1, ::1 or localhost only; `bulkhead key add NAME` makes the first one.",
            f"{mistaken}:2: gateway.prot: unknown key; did you mean port?",
            f"{mistaken}:3: gateway.drain_s: expected a time of 0 s to 10 years, as 30, "
            '"30s" or "5m", not "five minutes".',
            f'{mistaken}:6: models."a".path: There is no model folder /nowhere.',
            f'{mistaken}:9: models."a".aliases: expected a list of names, not 3.',
            f"{mistaken}:11: this is not TOML: Expected '=' after a key in a key/value pair.",
            "6 mistakes.",
        ]

    def test_mistakes_in_json(self, mistaken: Path) -> None:
        done = bulkhead("config", "check", "--json", "--config", str(mistaken), "--host", "x")
        assert (done.returncode, done.stderr) == (1, "")
        by_flag, first, *_, last = json.loads(done.stdout)["mistakes"]
        assert (by_flag["source"], by_flag["name"], by_flag["file"]) == ("flag", "--host", None)
        assert first == {
            "source": "file",
            "file": str(mistaken),
            "line": 2,
            "name": None,
            "key": "gateway.prot",
            "message": "unknown key; did you mean port?",
        }
        assert (last["line"], last["key"]) == (11, "")

    def test_a_file_that_is_not_there(self) -> None:
        done = bulkhead("config", "check", "--config", "/nowhere.toml")
        assert done.returncode == 1
        assert done.stdout == "--config: There is no file /nowhere.toml.\n1 mistake.\n"

    def test_it_fits_a_terminal(self, mistaken: Path, file: Path) -> None:
        mistakes = _on_screen("config", "check", "--config", str(mistaken), status=1)
        assert max(map(len, mistakes)) <= 80
        # A path of the temporary folder may be broken anywhere, and what follows it.
        assert "didyoumeanport?" in "".join("".join(mistakes).split())
        good = _on_screen("config", "check", "--config", str(file), status=0)
        assert max(map(len, good)) <= 80
        assert "isgood" in "".join("".join(good).split())

    def test_a_wrong_option_is_wrong_use(self) -> None:
        assert bulkhead("config", "check", "--prot", "1").returncode == 2


class TestShow:
    def test_each_value_with_its_source(self, file: Path) -> None:
        done = subprocess.run(
            [*BULKHEAD, "config", "show", "--config", str(file), "--port", "7"],
            capture_output=True,
            text=True,
            env={**os.environ, "BULKHEAD_STATE_DIR": "/state"},
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert _is_plain(done.stdout)
        head, *rows = done.stdout.splitlines()
        assert head.startswith("File ")
        shown = {tuple(row.split()) for row in rows}
        assert ("gateway.host", '"127.0.0.1"', "default") in shown
        assert ("gateway.port", "7", "--port") in shown
        assert ("gateway.state_dir", '"/state"', "BULKHEAD_STATE_DIR") in shown
        assert ("gateway.drain_s", '"5m"', "config.toml:3") in shown

    def test_json(self, file: Path) -> None:
        flags = ("--model", "demo=x", "--state-dir", "/x\x9b")
        done = bulkhead("config", "show", "--json", "--config", str(file), *flags)
        assert done.returncode == 0
        assert _is_plain(done.stdout)
        values = {load["key"]: load for load in json.loads(done.stdout)}
        assert values["gateway.drain_s"] == {
            "source": "file",
            "file": str(file),
            "line": 3,
            "name": None,
            "key": "gateway.drain_s",
            "value": 300.0,
        }
        assert values['models."x".path']["source"] == "flag"
        assert values['models."x".priority']["source"] == "default"
        assert values["gateway.state_dir"]["value"] == "/x\x9b"

    def test_it_fits_a_terminal(self, file: Path) -> None:
        lines = _on_screen("config", "show", "--config", str(file), status=0)
        assert max(map(len, lines)) <= 80

    def test_mistakes_are_no_listing(self, mistaken: Path) -> None:
        done = bulkhead("config", "show", "--config", str(mistaken))
        assert (done.returncode, done.stdout) == (1, "")
        assert "did you mean port?" in done.stderr


def test_the_example_passes_the_check(tmp_path: Path) -> None:
    done = bulkhead("config", "example")
    assert (done.returncode, done.stdout) == (0, example())
    path = tmp_path / "config.toml"
    path.write_text(done.stdout)
    assert bulkhead("config", "check", "--config", str(path)).returncode == 0
    assert max(map(len, _on_screen("config", "example", status=0))) <= 80


def test_the_schema_holds_for_the_example() -> None:
    done = bulkhead("config", "schema")
    assert done.returncode == 0
    jsonschema.validate(tomllib.loads(example()), json.loads(done.stdout))


@pytest.mark.parametrize("verb", ["check", "show", "example", "schema"])
def test_help_fits_a_terminal(verb: str) -> None:
    assert max(map(len, _on_screen("config", verb, "--help", status=0))) <= 80
