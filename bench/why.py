"""`python -m bench.why`: what it costs to remember requests, for `bulkhead why`.

An agent's conversation, after a long system prompt with tools, is held again and again, with
`prompt_cache.explain` on and off in turns: the seconds of a request, and the gateway's processor
time for it. Beside that, in one process, the time of what is done for each request alone: its
sections, its record, and the hashes of its tokens. That part depends least on what else the machine
does, and is set against the time of a request.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.machine import cpu_s, describe_machine
from bench.results import GATEWAY
from bench.servers import BulkheadServer
from gateway.requests.trace import Trace
from gateway.requests.use import Timing
from gateway.why.record import RequestRecord
from gateway.why.records import Records
from gateway.why.sections import sketch
from protocol.message_base import pack
from protocol.requests import ChatMessage, ChatPrompt, Generate, Sampling, Tools

_SENTENCE: Final = "The agent reads a file, changes some lines and runs the tests again. "
_CHARACTERS_PER_TOKEN: Final = 3
_SILENCE_S: Final = 300.0


def _tools(number: int) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    return [
        {
            "type": "function",
            "function": {"name": f"t{i}", "description": _SENTENCE * 8, "parameters": parameters},
        }
        for i in range(number)
    ]


def _turns(mark: str, parsed: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The bodies of a conversation, each with the messages of the one before."""
    system = mark + _SENTENCE * (parsed.characters // len(_SENTENCE))
    messages = [{"role": "system", "content": system}]
    for turn in range(parsed.turns):
        messages.append({"role": "user", "content": f"Turn {turn}: {_SENTENCE * 6}"})
        yield {
            "model": "bench",
            "messages": list(messages),
            "tools": _tools(parsed.tools),
            "max_tokens": parsed.tokens,
        }
        messages.append({"role": "assistant", "content": f"Done {turn}. {_SENTENCE * 2}"})


class _Client:
    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=_SILENCE_S)

    def post(self, path: str, body: dict[str, Any]) -> None:
        headers = {"content-type": "application/json"}
        self._connection.request("POST", path, json.dumps(body), headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != http.client.OK:
            raise SystemExit(f"bench: {path}: {answer.decode()}")


def main() -> int:
    parser = argparse.ArgumentParser("bench.why", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--characters", type=int, default=3_000, help="of the system prompt")
    parser.add_argument("--tools", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parsed = parser.parse_args()
    print(describe_machine())
    seconds, spent = _served(parsed)
    print("\n| explain | seconds of a request | gateway's processor time (ms) |")
    print("| --- | ---: | ---: |")
    for mode in seconds:
        median = statistics.median(seconds[mode])
        print(f"| {mode} | {median:.4f} | {statistics.median(spent[mode]) * 1000:.2f} |")
    alone_s = _alone(parsed)
    whole_s, least_s = statistics.median(seconds["false"]), min(seconds["false"])
    print(
        f"\nalone {alone_s * 1e6:.0f} µs a request: {alone_s / whole_s:.3%} of the median, "
        f"{alone_s / least_s:.3%} of the fastest ({least_s:.4f} s)"
    )
    return 0


def _served(
    parsed: argparse.Namespace,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The seconds of each request, and the gateway's processor time for a request of each
    conversation, with and without `explain`.
    """
    seconds, spent = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        config = Path(folder) / "config.toml"
        config.write_text("")
        log = Path(folder) / "log"
        server = BulkheadServer(Path("demo"), Path(folder) / "state", log, "--config", str(config))
        ends.callback(server.stop)
        client = _Client(server.address)
        client.post("/v1/chat/completions", next(_turns("warm", parsed)))
        for number in range(parsed.rounds):
            modes = ("true", "false") if number % 2 else ("false", "true")
            for mode in modes:
                config.write_text(f"[prompt_cache]\nexplain = {mode}\n")
                client.post("/admin/v1/reload", {})
                pids = server.processes()
                before_s = cpu_s(pids)[GATEWAY]
                for body in _turns(f"{number} {mode} ", parsed):
                    began = time.perf_counter()
                    client.post("/v1/chat/completions", body)
                    seconds[mode].append(time.perf_counter() - began)
                spent[mode].append((cpu_s(pids)[GATEWAY] - before_s) / parsed.turns)
    return seconds, spent


def _alone(parsed: argparse.Namespace) -> float:
    """The seconds that are spent on each request of a conversation, the median."""
    records = Records()
    seconds = []
    for number in range(parsed.rounds):
        for body in _turns(f"alone {number}", parsed):
            # As they come from a body: no text is hashed yet.
            messages = tuple(
                ChatMessage(message["role"], str(message["content"].encode(), "utf-8"))
                for message in body["messages"]
            )
            tools = Tools(definitions=json.dumps(body["tools"]))
            prompt, sampling = ChatPrompt(messages), Sampling(seed=0)
            task = Generate(request_id="r", prompt=prompt, sampling=sampling, tools=tools)
            characters = sum(len(message.content) for message in messages)
            token_ids = pack(range((characters + len(tools.definitions)) // _CHARACTERS_PER_TOKEN))
            began = time.perf_counter()
            _remember(records, task, token_ids)
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _remember(records: Records, task: Generate, token_ids: bytes) -> None:
    """What is done for a request, as in `RequestMemory` and `Traffic`."""
    trace = Trace(Timing(0.0))
    records.add(
        RequestRecord(
            id="r",
            answer="",
            model="m",
            owner="",
            key=None,
            salt="",
            at=0.0,
            sketch=sketch(task, records.known("")),
            trace=trace,
        )
    )
    trace.rendered(token_ids)


if __name__ == "__main__":
    sys.exit(main())
