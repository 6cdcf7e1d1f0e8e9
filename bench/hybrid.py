"""`python -m bench.hybrid`: prompts of a model with recurrent layers, whose states can't be cut.

The first token of a conversation's next turn, and of a turn whose last message was replaced; and
a long prompt whose client gives up every two seconds and asks again. Turns follow at once, and
after SIGKILL of the worker. Bulkhead answers one request at a time; loads are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.conversation import RandomText, order
from bench.load import Address
from bench.machine import cpu_s, describe_machine, wait_until_gone
from bench.models import build_model
from bench.results import WORKER, FailedError
from bench.servers import BulkheadServer
from gateway.config.model_folders import DEMO_FOLDER

_PATIENCE_S: Final = 600.0
_GIVES_UP_S: Final = 2.0
_MOST_ATTEMPTS: Final = 300
_TARGET: Final = 0.15
_CANCELLED_TARGET: Final = 1.2
HYBRID: Final[dict[str, Any]] = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 64,
    "mlp_only_layers": [],
    "moe_intermediate_size": 64,
    "partial_rotary_factor": 0.25,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 65536,
}


class Answer(NamedTuple):
    text: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hybrid", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--prompt", type=int, default=4000, metavar="TOKENS")
    parser.add_argument("--long", type=int, default=20000, metavar="TOKENS")
    parsed = parser.parse_args()
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bh-")))
        build_model(folder / "model", HYBRID)
        print(f"{describe_machine()}\n")
        server = BulkheadServer(folder / "model", folder / "state", folder / "log")
        ends.callback(server.stop)
        words = RandomText(DEMO_FOLDER, 1)
        try:
            _turns(server, words, parsed.rounds, parsed.prompt)
            _cancelled(server, words, parsed.rounds, parsed.long)
        except (FailedError, OSError) as error:
            print(f"bench.hybrid: {error}", file=sys.stderr)
            return 1
    return 0


def _turns(server: BulkheadServer, words: RandomText, rounds: int, tokens: int) -> None:
    print(f"Medians of {rounds} conversations of {tokens} tokens.\n")
    print("| turn | first turn (s) | this turn (s) | ratio | target |")
    print("| --- | ---: | ---: | ---: | ---: |")
    _ask(server.address, [_user(words.draw(tokens))])
    measured: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        history = [_user(words.draw(tokens // 2)), _assistant(words.draw(tokens // 4))]
        before = [*history, _user(words.draw(tokens // 4))]
        first = _ask(server.address, before)
        turns = {
            "next": [*before, _assistant(first.text), _user(words.draw(40))],
            "last message replaced": [*history, _user(words.draw(40))],
        }
        # Kept prompts go to disk beside the engine.
        time.sleep(1.0)
        for when in ("at once", "worker killed"):
            if when == "worker killed":
                _kill_worker(server)
            for name, messages in turns.items():
                # Another last message, since the same one would be known by now.
                turn = [*messages[:-1], _user(words.draw(40))]
                seconds = _ask(server.address, turn).seconds
                measured.setdefault(f"{name}, {when}", []).append((first.seconds, seconds))
    for name, pairs in measured.items():
        first_s, turn_s = (statistics.median(pair) for pair in zip(*pairs, strict=True))
        print(f"| {name} | {first_s:.2f} | {turn_s:.2f} | {turn_s / first_s:.3f} | {_TARGET} |")


def _cancelled(server: BulkheadServer, words: RandomText, rounds: int, tokens: int) -> None:
    print(f"\nA prompt of {tokens} tokens, given up every {_GIVES_UP_S:.0f} s.\n")
    print(
        "| whole (s) | its CPU time | attempts | all (s) | CPU time | ratio | of CPU time | text |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for _ in range(rounds):
        messages = [_user(words.draw(tokens))]
        began_s = _worker_s(server)
        whole = _ask(server.address, messages, salt="whole")
        whole_s = _worker_s(server) - began_s
        attempts, began_at, began_s = 0, time.perf_counter(), _worker_s(server)
        answer = None
        while answer is None:
            attempts += 1
            if attempts > _MOST_ATTEMPTS:
                raise FailedError("The prompt is never computed.")
            with suppress(TimeoutError):
                answer = _ask(server.address, messages, salt="cut", patience_s=_GIVES_UP_S)
        all_s, cut_s = time.perf_counter() - began_at, _worker_s(server) - began_s
        print(
            f"| {whole.seconds:.2f} | {whole_s:.2f} | {attempts} | {all_s:.2f} | {cut_s:.2f} "
            f"| {all_s / whole.seconds:.2f} (target {_CANCELLED_TARGET}) | {cut_s / whole_s:.2f} "
            f"| {'same' if answer.text == whole.text else 'another'} |",
            flush=True,
        )


def _worker_s(server: BulkheadServer) -> float:
    """The CPU time of the worker, which tells work from waits for other programs."""
    return cpu_s(server.processes())[WORKER]


def _ask(
    address: Address,
    messages: list[dict[str, str]],
    salt: str = "",
    patience_s: float = _PATIENCE_S,
) -> Answer:
    """Ask for a few tokens.

    Raises:
        TimeoutError: the answer took longer than `patience_s`. The connection is closed.
    """
    body: dict[str, Any] = {"model": "bench", "messages": messages, "max_tokens": 4}
    body |= {"temperature": 0, "cache_salt": salt} if salt else {"temperature": 0}
    request = urllib.request.Request(
        f"http://{address[0]}:{address[1]}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    began_s = time.perf_counter()
    with urllib.request.urlopen(request, timeout=patience_s) as response:
        answer = json.load(response)
    seconds = time.perf_counter() - began_s
    (choice,) = answer["choices"]
    return Answer(choice["message"]["content"] or "", seconds)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _kill_worker(server: BulkheadServer) -> None:
    pid = server.processes()[WORKER]
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    # Until the gateway has noticed, an order would find the model loaded.
    time.sleep(0.5)
    order(server.address, "bench", "load")


if __name__ == "__main__":
    sys.exit(main())
