from __future__ import annotations

import json
import time

from tests.cli.canned import CannedGateway, chat_events
from tests.cli.terminal import bulkhead, terminal
from tests.support.gateway import Gateway

CHAT = "/v1/chat/completions"


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
    assert done.stderr.startswith("bulkhead: Say which model to chat with; there are: ")
    assert "slow" in done.stderr


def test_nothing_on_stdin(gateway: Gateway) -> None:
    done = bulkhead("chat", url=gateway.url, stdin=" \n")
    assert (done.returncode, done.stderr) == (2, "bulkhead: There is no message on stdin.\n")


def test_a_refusal_ends_it(fleet: Gateway) -> None:
    done = bulkhead("chat", "broken", url=fleet.url, stdin="Hello")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("bulkhead: 'broken' ")


def test_an_error_in_mid_answer_ends_it(canned: CannedGateway) -> None:
    envelope = {"error": {"message": "The worker is gone.", "code": "worker_crashed"}}
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


def test_a_conversation_on_a_terminal(canned: CannedGateway) -> None:
    canned.will_answer("/v1/models", {"data": [{"id": "m", "state": "ready"}]})
    canned.will_stream(CHAT, chat_events("Two ", "\x1b[31mwords\u2028."))
    canned.will_answer(CHAT, {"error": {"message": "Full.", "code": "queue_full"}}, status=429)
    canned.will_stream(CHAT, chat_events("And more."))
    with terminal(
        *("chat", "--system", "Be brief.", "--temperature", "0.5", "--max-tokens", "9"),
        url=canned.url,
    ) as screen:
        screen.expect("> ")
        screen.type("One\n")
        assert "Two [31mwords\u2028." in screen.expect("\n> ")
        screen.type("Lost\n")
        assert "bulkhead: Full." in screen.expect("\n> ")
        screen.type("\n")
        screen.expect("> ")
        screen.type("Three\n")
        assert "And more." in screen.expect("\n> ")
        screen.type("half a line")
        screen.expect("half a line")
        # readline reacts to a signal only while it waits for a key.
        time.sleep(0.2)
        screen.type("\x03")
        screen.expect("(/exit or Ctrl-D ends the chat)")
        screen.expect("> ")
        screen.type("/exit\n")
        assert screen.exit_status() == 0
    first, _, last = canned.bodies
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
    assert last["messages"][1:] == [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two \x1b[31mwords\u2028."},
        {"role": "user", "content": "Three"},
    ]


def test_an_answer_can_be_stopped(gateway: Gateway) -> None:
    with terminal("chat", "--temperature", "0", url=gateway.url) as screen:
        screen.expect("> ")
        screen.type("Tell me a story.\n")
        screen.expect("\r\nThe")
        screen.type("\x03")
        screen.expect("(stopped)")
        screen.expect("> ")
        screen.type("What is Bulkhead?\n")
        screen.expect("\n> ")
        screen.type("\x04")
        assert screen.exit_status() == 0
    assert gateway.model()["active_requests"] == 0


def test_tells_what_the_wait_is_for(fleet: Gateway) -> None:
    fleet.order("kill", "slow", force=True).raise_for_status()
    with terminal("chat", "slow", url=fleet.url) as screen:
        screen.expect("> ")
        screen.type("What is Bulkhead?\n")
        screen.expect("waiting for slow (starting...)")
        screen.expect("\n> ")
        screen.type("/exit\n")
        assert screen.exit_status() == 0
