from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cli.canned import PAUSE, CannedGateway, chat_events, reasoning_event
from tests.cli.screen import Screen, screen
from tests.cli.terminal import bulkhead
from tests.support.gateway import Gateway

CHAT = "/v1/chat/completions"
MODELS = [
    {"id": "m", "state": "ready", "aliases": ["default"]},
    {"id": "other", "state": "unloaded"},
]
LISTENS = "m is ready. /help shows the commands.\n>"

Sitting = Callable[..., AbstractContextManager[Screen]]


@pytest.fixture
def sitting(canned: CannedGateway, tmp_path: Path) -> Sitting:
    """Chats with the canned gateway's first model, with a history of their own."""
    canned.will_answer("/v1/models", {"data": MODELS})
    for model in MODELS:
        canned.will_answer(f"/v1/models/{model['id']}", model)

    def sit(columns: int = 80, lines: int = 40) -> AbstractContextManager[Screen]:
        return screen(
            *("chat", "m"),
            url=canned.url,
            columns=columns,
            lines=lines,
            more={"BULKHEAD_STATE_DIR": str(tmp_path / "state")},
        )

    return sit


def asked(canned: CannedGateway) -> list[str]:
    """The last message of each request."""
    return [body["messages"][-1]["content"] for body in canned.bodies]


def test_answers_a_message_on_stdin_and_ends(gateway: Gateway) -> None:
    done = bulkhead(
        *("chat", "--temperature", "0", "--max-tokens", "20"),
        url=gateway.url,
        stdin="What is Bulkhead?\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    answer = gateway.say("What is Bulkhead?\n", temperature=0, max_tokens=20)
    assert done.stdout == f"{answer}\n"
    assert "\x1b" not in done.stdout


def test_asks_which_of_several_models(fleet: Gateway) -> None:
    done = bulkhead("chat", url=fleet.url, stdin="Hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bulkhead: Name the model; there are: ")
    assert "slow" in done.stderr


def test_nothing_on_stdin(gateway: Gateway) -> None:
    done = bulkhead("chat", url=gateway.url, stdin=" \n")
    assert (done.returncode, done.stderr) == (2, "bulkhead: There is no message on stdin.\n")


def test_a_refusal_ends_it(fleet: Gateway) -> None:
    done = bulkhead("chat", "broken", url=fleet.url, stdin="Hello")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("bulkhead: 'broken' ")


def test_an_error_in_mid_answer_ends_it(canned: CannedGateway) -> None:
    envelope = {
        "error": {
            "message": "The worker is gone.",
            "type": "server_error",
            "code": "worker_crashed",
            "param": None,
        }
    }
    pieces = chat_events("So ", "far")[:-1]
    canned.will_answer("/v1/models/m", {"id": "m", "state": "ready"})
    canned.will_stream(CHAT, [*pieces, f"event: error\ndata: {json.dumps(envelope)}\n\n"])
    done = bulkhead("chat", "m", url=canned.url, stdin="Hello")
    assert (done.returncode, done.stdout) == (1, "So far\n")
    assert done.stderr == "bulkhead: The worker is gone.\n"


def test_an_answer_that_breaks_off_is_not_taken_for_whole(canned: CannedGateway) -> None:
    canned.will_answer("/v1/models/m", {"id": "m", "state": "ready"})
    canned.will_stream(CHAT, chat_events("So ", "far")[:-1])
    done = bulkhead("chat", "m", url=canned.url, stdin="Hello")
    assert (done.returncode, done.stdout) == (1, "So far\n")
    assert "broke off" in done.stderr


def test_a_conversation(sitting: Sitting, canned: CannedGateway) -> None:
    canned.will_stream(CHAT, chat_events("Two ", "\x1b[31mwords\u2028."))
    canned.will_answer(CHAT, {"error": {"message": "Full.", "code": "queue_full"}}, status=429)
    canned.will_stream(CHAT, chat_events("And ", "more."))
    canned.will_stream(CHAT, chat_events("Or ", "less."))
    with sitting() as seen:
        seen.shows(LISTENS)
        seen.type("/system Be brief.\r/set temperature 0.5\r/set max_tokens 9\r")
        seen.shows("longest answer\n>")
        seen.type("One\r")
        # The separator of lines has no place on a screen.
        seen.shows("Two [31mwords")
        seen.type("Lost\r")
        seen.shows("bulkhead: Full.\n>")
        seen.type("\r/retry\r")
        seen.shows("And more.\n>")
        seen.type("/retry\r")
        seen.shows("Or less.\n>")
        seen.type("half a line\x03")
        seen.shows("(/exit or Ctrl-D ends the chat)\n>")
        seen.type("/exit\r")
        assert seen.exit_status() == 0
    first, _, _, last = canned.bodies
    assert first == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "One"},
        ],
        "stream": True,
        "temperature": 0.5,
        "max_tokens": 9,
    }
    assert asked(canned) == ["One", "Lost", "Lost", "Lost"]
    assert last["messages"][1:] == [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two \x1b[31mwords\u2028."},
        {"role": "user", "content": "Lost"},
    ]


def test_messages_of_several_lines(sitting: Sitting, canned: CannedGateway) -> None:
    canned.will_stream(CHAT, chat_events("Done."))
    with sitting() as seen:
        seen.shows(LISTENS)
        for keys in (
            "one\\\rtwo\r",
            '"""\rthree\r\rfour"""\r',
            "\x1b[200~five\\\n  six\x1b[201~\r",
            "seven\x1b\reight\r",
            "//nine\udcff\r",
            "/usr/bin is what?\r",
        ):
            before = len(canned.bodies)
            seen.type(keys)
            seen.waits_until(lambda before=before: len(canned.bodies) > before)
            seen.shows("Done.\n>")
            seen.clear()
        seen.type("\x04")
        assert seen.exit_status() == 0
    assert asked(canned) == [
        "one\ntwo",
        "three\n\nfour",
        "five\\\n  six",
        "seven\neight",
        "/nine?",
        "/usr/bin is what?",
    ]


def test_its_commands(sitting: Sitting, canned: CannedGateway) -> None:
    canned.will_stream(CHAT, chat_events("Yes."))
    unknown = "There is no model 'otter'; there are: m, other. Did you mean 'other'?"
    canned.will_answer(
        "/v1/models/otter", {"error": {"message": unknown, "code": "model_not_found"}}, status=404
    )
    answers = {
        "/modle": "bulkhead: There is no /modle. Did you mean /model?",
        "/model": "* m (ready)\n  other (unloaded)",
        "/model otter": "Did you mean 'other'?",
        "/mod\tot\t": "other goes on with the same messages.",
        "/set temprature 1": "There is no parameter 'temprature'. Did you mean 'temperature'?",
        "/set temperature 3": "temperature can't be '3': expected float <= 2.0.",
        "/set parameter seed 7": "seed                 7",
        "/set stop END 'THE END'": "stop                 END 'THE END'",
        "/set": "top_p                -",
        "/unset seed": "seed                 -",
        "/unset": "Name the parameter: /unset temperature.",
        "/system": "there is no system message",
        "/system Be kind.": "\nBe kind.",
        "/system none": "there is no system message",
        "/retry": "Nothing was asked yet.",
        "/clear": "\nforgotten",
        "/clear now": "bulkhead: /clear takes no argument: type /clear alone, or //",
        "/quit it": "bulkhead: /quit takes no argument",
        "/?": "earlier lines, of earlier chats too",
    }
    with sitting(lines=60) as seen:
        seen.shows(LISTENS)
        for typed, answer in answers.items():
            seen.type(f"{typed}\r")
            seen.shows(answer)
            seen.clear()
        seen.type("Well?\r")
        seen.shows("Yes.\n>")
        seen.type("/bye\r")
        assert seen.exit_status() == 0
    (body,) = canned.bodies
    assert (body["model"], body["stop"]) == ("other", ["END", "THE END"])
    assert not {"seed", "temperature"} & body.keys()


def test_typing_during_an_answer_is_no_part_of_the_answer(
    sitting: Sitting, canned: CannedGateway
) -> None:
    begun, *rest = chat_events("Half of it, ", "and the rest.")
    canned.will_stream(CHAT, [begun, PAUSE, *rest])
    canned.will_stream(CHAT, chat_events("Good."))
    with sitting() as seen:
        seen.shows(LISTENS)
        seen.type("One\r")
        seen.shows("Half of it,")
        seen.type("Twq\x7fo\rThree")
        canned.goes_on.set()
        seen.shows("> One\nHalf of it, and the rest.\n> Two\nGood.\n> Three")
        seen.type("\r")
        seen.shows("> Three\nGood.\n>")
        seen.type("\x04")
        assert seen.exit_status() == 0
    assert asked(canned) == ["One", "Two", "Three"]


def test_typed_lines_are_there_in_the_next_chat(
    sitting: Sitting, canned: CannedGateway, tmp_path: Path
) -> None:
    canned.will_stream(CHAT, chat_events("Done."))
    with sitting() as seen:
        seen.shows(LISTENS)
        seen.type("first\x1b\rline\r")
        seen.shows("Done.\n>")
        seen.type("\x04")
        assert seen.exit_status() == 0
    (history,) = (tmp_path / "state").iterdir()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700
    history.chmod(0o644)
    with sitting() as seen:
        seen.shows(LISTENS)
        seen.type("\x1b[A")
        seen.shows("> first\n. line")
        seen.type("!\r")
        seen.shows("Done.\n>")
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert asked(canned) == ["first\nline", "first\nline!"]


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_words_are_whole_and_reasoning_is_dim(
    sitting: Sitting, canned: CannedGateway, columns: int
) -> None:
    words = [f"word-number-{index}" for index in range(100)]
    code = "print('a line of a program, which stands as it is')  # " + "x" * columns
    canned.will_stream(
        CHAT,
        [
            reasoning_event("Well, I think"),
            *chat_events(
                "\n\n", " ".join(words), f"\n\n```python\n{code}\n```\n", "漢字" * columns
            ),
        ],
    )
    with sitting(columns, lines=120) as seen:
        seen.shows(LISTENS)
        seen.type("Go\r")
        rows = seen.shows("字\n>").splitlines()
    begins, code_at = rows.index("Well, I think") + 2, rows.index("```python")
    assert rows[begins - 1] == ""
    shown = rows[begins : code_at - 1]
    assert [word for row in shown for word in row.split()] == words
    assert all(len(row) <= columns for row in shown)
    assert all(len(row) > columns - len("word-number-99 ") for row in shown[:-1])
    assert "".join(rows[code_at + 1 : rows.index("```")]) == code
    assert "".join(rows[rows.index("```") + 1 : -1]).replace(" ", "") == "漢字" * columns
    assert "\x1b[2mWell," in seen.printed
    assert "\x1b[2m word-number" not in seen.printed


def test_a_stream_that_goes_on_elsewhere_and_one_that_fails(
    sitting: Sitting, canned: CannedGateway
) -> None:
    for state in ("ready", "loading"):
        canned.will_answer("/v1/models/m", {"id": "m", "state": state})
    begun, *rest = chat_events("Half a wo", "rd.")
    canned.will_stream(CHAT, [begun, ": waiting\n\n", *rest])
    envelope = {
        "error": {
            "message": "Two workers died.",
            "type": "server_error",
            "code": "worker_crashed",
            "param": None,
        }
    }
    canned.will_stream(CHAT, [begun, f"event: error\ndata: {json.dumps(envelope)}\n\n"])
    with sitting() as seen:
        seen.shows(LISTENS)
        seen.type("One\r")
        seen.shows("Half a\n(another worker goes on with the answer: m is loading...)\nword.\n>")
        seen.type("Two\r")
        seen.shows("> Two\nHalf a wo\nbulkhead: Two workers died.\n>")
        seen.type("\x04")
        assert seen.exit_status() == 0


def test_a_gateway_that_dies(sitting: Sitting, canned: CannedGateway) -> None:
    canned.will_stream(CHAT, chat_events("Fine."))
    with sitting() as seen:
        seen.shows(LISTENS)
        seen.type("One\r")
        seen.shows("Fine.\n>")
        canned.close()
        seen.type("Two\r")
        seen.shows("bulkhead: No gateway answers at")
        seen.type("/mod\t \t")
        seen.type("\x15still there")
        seen.shows("> still there")
        seen.type("\x15\x04")
        assert seen.exit_status() == 0


def test_no_gateway_and_no_such_model(gateway: Gateway) -> None:
    dead = bulkhead("chat", "demo", url="http://127.0.0.1:1", stdin="Hello")
    assert (dead.returncode, dead.stdout) == (3, "")
    assert "start one with `bulkhead serve`" in dead.stderr
    unknown = bulkhead("chat", "Demmo", url=gateway.url, stdin="Hello")
    assert (unknown.returncode, unknown.stdout) == (4, "")
    assert unknown.stderr.endswith("there are: demo. Did you mean 'demo'?\n")


def test_an_answer_can_be_stopped(gateway: Gateway, tmp_path: Path) -> None:
    more = {"BULKHEAD_STATE_DIR": str(tmp_path / "state")}
    with screen("chat", "--temperature", "0", url=gateway.url, more=more) as seen:
        seen.shows("demo is ready. /help shows the commands.\n>")
        seen.type("Tell me a story.\r")
        seen.shows("> Tell me a story.\nThe")
        seen.type("\x03")
        seen.shows("(stopped)\n>")
        seen.clear()
        seen.type("What is Bulkhead?\r")
        seen.shows(".\n>")
        seen.type("\x04")
        assert seen.exit_status() == 0
    assert gateway.model()["active_requests"] == 0


@pytest.mark.slow
def test_a_worker_that_is_killed_in_mid_answer(gateway: Gateway, tmp_path: Path) -> None:
    words = gateway.say("Tell me a story.", temperature=0).split()
    more = {"BULKHEAD_STATE_DIR": str(tmp_path / "state")}
    with screen("chat", "--temperature", "0", url=gateway.url, more=more) as seen:
        seen.shows("demo is ready. /help shows the commands.\n>")
        seen.type("Tell me a story.\r")
        seen.shows("> Tell me a story.\nThe")
        os.kill(gateway.worker_pid(), signal.SIGKILL)
        seen.waits_until(lambda: seen.text.endswith(".\n>"))
        rows = seen.rows
    shown = rows[rows.index("> Tell me a story.") + 1 : -1]
    assert " ".join(text for text in shown if not text.startswith("(")).split() == words


def test_a_file_takes_the_answer_and_the_terminal_the_message(
    gateway: Gateway, tmp_path: Path
) -> None:
    into = tmp_path / "answer"
    shell = ("sh", "-c", f'"$0" -m gateway chat --max-tokens 5 >"{into}"', sys.executable)
    with screen(command=shell, url=gateway.url) as seen:
        seen.shows("Type the message; Ctrl-D after its last line sends it.")
        seen.type("What is Bulkhead?\r\x04")
        assert seen.exit_status() == 0
    answer = into.read_text()
    assert answer.strip()
    assert "\x1b" not in answer


def test_a_model_is_loaded_before_it_is_called_ready(fleet: Gateway, tmp_path: Path) -> None:
    fleet.order("unload", "slow").raise_for_status()
    more = {"BULKHEAD_STATE_DIR": str(tmp_path / "state")}
    with screen("chat", "slow", url=fleet.url, more=more) as seen:
        seen.shows("slow is ready. /help shows the commands.\n>")
        assert fleet.model("slow")["state"] == "ready"
        printed = seen.printed
        assert re.search(r"slow: (starting|loading).*, \d+ s", printed)
        assert "is ready" not in printed.partition(", 0 s")[0]
        seen.type("/exit\r")
        assert seen.exit_status() == 0


@pytest.mark.parametrize(
    ("state", "reason", "shown"),
    [
        ("unloaded", None, "m is unloaded: your first message loads it. /help"),
        ("held", "bulkhead load ends it.", "m is held (bulkhead load ends it). /help"),
    ],
)
def test_a_model_that_is_not_ready_is_not_called_so(
    state: str, reason: str | None, shown: str, canned: CannedGateway, tmp_path: Path
) -> None:
    """Without an operator's rights nothing is loaded, and no hold is ended."""
    model = {"id": "m", "state": state, "reason": reason}
    canned.will_answer("/v1/models/m", model)
    refused = {"error": {"message": "Only operators.", "code": "permission_denied"}}
    canned.will_answer("/admin/v1/models/m/load", refused, 403)
    more = {"BULKHEAD_STATE_DIR": str(tmp_path / "state")}
    with screen("chat", "m", url=canned.url, more=more) as seen:
        seen.shows(shown)
        seen.type("/exit\r")
        assert seen.exit_status() == 0
        assert "ready" not in seen.printed


@pytest.mark.slow
def test_tells_what_the_wait_is_for(fleet: Gateway, tmp_path: Path) -> None:
    more = {"BULKHEAD_STATE_DIR": str(tmp_path / "state")}
    with screen("chat", "slow", url=fleet.url, more=more) as seen:
        seen.shows("slow is ready. /help shows the commands.\n>")
        fleet.order("kill", "slow", force=True).raise_for_status()
        seen.type("What is Bulkhead?\r")
        seen.shows("(waiting: slow is starting...)")
        seen.waits_until(lambda: seen.text.endswith(".\n>"))
        seen.type("/exit\r")
        assert seen.exit_status() == 0


def test_cut_off_answer_is_printed_completely_first(
    sitting: Sitting, canned: CannedGateway
) -> None:
    """The last word may be half a one, and waits for its rest."""
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    pieces = [
        *chat_events("It stays an upr")[:-1],
        f"data: {json.dumps(end)}\n\n",
        "data: [DONE]\n\n",
    ]
    canned.will_stream(CHAT, pieces)
    with sitting() as seen:
        seen.shows(LISTENS)
        seen.type("Go\r")
        seen.shows("It stays an upr\n(cut off: it has as many tokens as it may)")
