from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.cli.canned import CannedGateway
from tests.cli.terminal import bulkhead
from tests.support.gateway import Gateway

ON_A_MODEL = ("load", "unload", "restart", "kill", "logs", "chat")


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address at which nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_no_gateway(nowhere: str) -> None:
    done = bulkhead("status", url=nowhere)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"bulkhead: No gateway answers at {nowhere} (")


def test_a_gateway_that_is_down_is_looked_for_where_the_configuration_has_it(
    nowhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    port = nowhere.rpartition(":")[2]
    config.write_text(f'[gateway]\nport = {port}\nstate_dir = "{tmp_path}/state"\n')
    monkeypatch.setenv("BULKHEAD_CONFIG", str(config))
    done = CliRunner().invoke(main, ["status"])
    assert (done.exit_code, f"No gateway answers at {nowhere} (" in done.stderr) == (3, True)


def test_option_before_the_command_is_refused_with_its_place() -> None:
    done = CliRunner().invoke(main, ["--url", "http://127.0.0.1:1", "status"])
    assert (done.exit_code, "Options come after the command" in done.stderr) == (2, True)


def test_no_such_model(gateway: Gateway) -> None:
    done = bulkhead("load", "no/such model", url=gateway.url)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "bulkhead: There is no model 'no/such model'; there are: demo.\n"


# The same for every verb, in this process: a process for each would take half a minute.


@pytest.mark.parametrize("verb", ["status", "models", *ON_A_MODEL])
def test_no_gateway_for_any_verb(nowhere: str, verb: str) -> None:
    model = ("demo",) if verb in ON_A_MODEL else ()
    assert CliRunner().invoke(main, [verb, *model, "--url", nowhere]).exit_code == 3


@pytest.mark.parametrize("verb", ON_A_MODEL)
def test_no_such_model_for_any_verb(gateway: Gateway, verb: str) -> None:
    assert CliRunner().invoke(main, [verb, "missing", "--url", gateway.url]).exit_code == 4


@pytest.mark.parametrize("verb", [*ON_A_MODEL, "show", "rm", "events"])
@pytest.mark.parametrize("model", ["../keys/mine", "org/../../reload", "./demo", "org//m", ".", ""])
def test_no_id_leads_to_another_route(canned: CannedGateway, verb: str, model: str) -> None:
    options = {"rm": ("--yes",), "events": ("--model",)}.get(verb, ())
    done = CliRunner().invoke(main, [verb, *options, model, "--url", canned.url])
    assert (done.exit_code, done.stdout) == (4, "")
    assert f"There is no model {model!r}" in done.stderr
    assert canned.headers == [], "nobody was asked"


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_no_name_of_a_key_leads_to_another_route(canned: CannedGateway, name: str) -> None:
    done = CliRunner().invoke(main, ["key", "revoke", name, "--url", canned.url])
    assert (done.exit_code, done.stdout) == (1, "")
    assert canned.headers == [], "nobody was asked"


def test_usage_of_a_state_folder_that_no_gateway_has(nowhere: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["usage", "--state-dir", str(tmp_path), "--url", nowhere])
    assert (done.exit_code, done.stdout) == (3, "")
    assert f"No gateway runs with the state folder {tmp_path}" in done.stderr


def test_an_unknown_model_of_a_key_is_warned_of(canned: CannedGateway) -> None:
    unknown = "There is no model 'dmo'. Did you mean 'demo'?"
    none = {"error": {"message": unknown, "code": "model_not_found"}}
    canned.will_answer("/v1/models/dmo", none, 404)
    canned.will_answer("/v1/models/demo", {"id": "demo", "state": "ready"})
    made = {"name": "x", "created_at": 1.0, "key": "sk-1", "keys": [], "required": True}
    canned.will_answer("/admin/v1/keys", made, 201)
    done = CliRunner().invoke(
        main, ["key", "add", "x", "--models", "demo,dmo", "--url", canned.url]
    )
    assert (done.exit_code, done.stdout) == (0, "sk-1\n"), "where there is no terminal"
    assert done.stderr == (
        "Careful: There is no model 'dmo'. Did you mean 'demo'?\n"
        "The key x is printed alone to the output. Keep it: Bulkhead stores only its hash, and "
        "can't show it again.\n"
    )


def test_without_a_gateway_the_configuration_knows_the_models_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[models.mine]\npath = "demo"\naliases = ["short"]\n')
    monkeypatch.setenv("BULKHEAD_CONFIG", str(config))
    folder = ("--state-dir", str(tmp_path / "state"))
    done = CliRunner().invoke(main, ["key", "add", "x", "--models", "mine,short,else", *folder])
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("Careful") == 1
    assert "has no model 'else'" in done.stderr
    done = CliRunner().invoke(main, ["key", "add", "y", "--models", "min", *folder])
    assert "Did you mean 'mine'?" in done.stderr
    done = CliRunner().invoke(main, ["key", "revoke", "x", *folder])
    assert (done.exit_code, done.stderr) == (0, "")
    done = CliRunner().invoke(main, ["key", "revoke", "y", *folder])
    assert (done.exit_code, "requests still need one" in done.stderr) == (0, True)


def test_a_folder_names_an_entry(canned: CannedGateway) -> None:
    none = {"error": {"message": "None.", "code": "model_not_found"}}
    canned.will_answer("/admin/v1/library//models/m%20m", none, 404)
    done = CliRunner().invoke(main, ["show", "/models/m m", "--url", canned.url])
    assert (done.exit_code, done.stderr) == (4, "bulkhead: None.\n")


def test_following_the_log_of_no_such_model(gateway: Gateway) -> None:
    done = CliRunner().invoke(main, ["logs", "-f", "missing", "--url", gateway.url])
    assert done.exit_code == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("load",),
        ("status", "--jsn"),
        ("status", "--url", "localhost:8642"),
        ("status", "--url", "http://"),
        ("status", "--url", "http://[::1"),
        ("status", "--admin-key", "two\nlines"),
        ("logs", "demo", "--lines", "-1"),
        ("chat", "demo", "--temperature", "3"),
        ("chat", "demo", "--max-tokens", "0"),
        ("key", "add", "x", "--models", ""),
        ("key", "add", "x", "--models", "demo", "--models", " , "),
        ("nothing",),
    ],
)
def test_wrong_use(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Error: " in done.stderr


@pytest.mark.parametrize(
    ("status", "body", "exit_status", "message"),
    [
        (503, {"error": {"message": "It is held.", "code": "model_unavailable"}}, 1, "It is held."),
        (200, ["something", "else"], 3, "is not a Bulkhead gateway, or one of another version"),
        (302, {}, 3, "is not a Bulkhead gateway (status 302)."),
        (404, {"detail": "Not Found"}, 3, "is not a Bulkhead gateway (status 404)."),
    ],
)
def test_other_answers(
    canned: CannedGateway, status: int, body: object, exit_status: int, message: str
) -> None:
    canned.will_answer("/admin/v1/status", body, status)
    done = CliRunner().invoke(main, ["status", "--json", "--url", canned.url])
    assert (done.exit_code, done.stdout) == (exit_status, "")
    assert done.stderr.startswith("bulkhead: ")
    assert message in done.stderr


def test_a_connection_that_breaks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        hang_up = threading.Thread(target=lambda: server.accept()[0].close())
        hang_up.start()
        done = bulkhead("models", url=url)
        hang_up.join()
    assert done.returncode == 3
    assert done.stderr.startswith(f"bulkhead: The connection to the gateway at {url} broke (")


def test_the_key_is_sent_and_proxies_are_not_asked(
    canned: CannedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    canned.will_answer("/v1/models", {"object": "list", "data": [{"id": "m", "state": "ready"}]})
    done = bulkhead("models", "--json", "--admin-key", "s3cret", url=canned.url)
    assert [load["id"] for load in json.loads(done.stdout)] == ["m"]
    assert canned.headers[0]["authorization"] == "Bearer s3cret"


def test_the_admin_key_comes_from_a_file(canned: CannedGateway, tmp_path: Path) -> None:
    """On the command line others see it, which is said."""
    canned.will_answer("/v1/models", {"object": "list", "data": []})
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    file.chmod(0o600)
    done = bulkhead("models", "--json", "--admin-key-file", str(file), url=canned.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert canned.headers[-1]["authorization"] == "Bearer s3cret"
    shown = bulkhead("models", "--json", "--admin-key", "other", url=canned.url)
    assert (shown.returncode, canned.headers[-1]["authorization"]) == (0, "Bearer other")
    assert "--admin-key-file" in shown.stderr
    both = bulkhead("models", "--admin-key", "a", "--admin-key-file", str(file), url=canned.url)
    assert (both.returncode, "Give either" in both.stderr) == (2, True)
    file.chmod(0o644)
    for path in (file, tmp_path / "none"):
        refused = bulkhead("models", "--admin-key-file", str(path), url=canned.url)
        assert (refused.returncode, "chmod 600" in refused.stderr) == (2, True)


def test_no_message_has_the_number_of_an_error() -> None:
    done = CliRunner().invoke(main, ["models", "--url", "http://127.0.0.1:9"])
    assert done.exit_code == 3
    assert "No gateway answers" in done.stderr
    assert "[Errno" not in done.stderr
