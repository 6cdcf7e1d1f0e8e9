"""`python -m bench.shares`: one key's flood of long prompts, and short chats of another key.

The flood comes at once. The other key asks for a short chat every two seconds until the flood is
over. The table has the time to the first token of these chats, and the tokens a second of all
requests together. `--against FOLDER` measures the packages in another checkout too, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from bench.machine import describe_machine
from bench.models import AGENT, endless_model, model_parser
from tests.support.gateway import Gateway

_TARGET_S: Final = 1.5
_THROUGHPUT_TARGET: Final = 0.95
_EVERY_S: Final = 2.0
_ANSWER_TOKENS: Final = 16
_DEADLINE: Final = {"x-deadline-s": "3600"}
# Ids that every tokenizer has.
_VOCABULARY: Final = range(10, 600)


class Flood(NamedTuple):
    """The first tokens of the short chats, and the whole time and the tokens of all requests."""

    first_token_s: list[float]
    wall_s: float
    tokens: int

    @property
    def p95_s(self) -> float:
        return sorted(self.first_token_s)[int(len(self.first_token_s) * 0.95)]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s


def main() -> int:
    parser = model_parser(
        "bench.shares", __doc__, rounds=3, model=None, shown="2 layers of width 128"
    )
    parser.add_argument("--prompts", type=int, default=40, metavar="N", help="of the flood")
    parser.add_argument("--tokens", type=int, default=6000, metavar="N", help="of each prompt")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout")
    parsed = parser.parse_args()
    chance = random.Random(1)
    found: dict[str, list[Flood]] = {}
    with tempfile.TemporaryDirectory(prefix="bh-") as folder:
        model = endless_model(parsed, Path(folder), AGENT)
        gateways = {"this checkout": _served(model, None)}
        if parsed.against is not None:
            gateways["the other"] = _served(model, parsed.against)
        try:
            for _ in range(parsed.rounds):
                for name, (gateway, keys) in gateways.items():
                    flood = asyncio.run(_round(gateway.url, keys, chance, parsed))
                    found.setdefault(name, []).append(flood)
                    print(f"{name}: {flood.p95_s:.2f} s, {flood.wall_s:.1f} s", file=sys.stderr)
        finally:
            for gateway, _ in gateways.values():
                gateway.stop()
    print(f"{describe_machine()}; {parsed.rounds} rounds\n")
    print(f"| {parsed.prompts} prompts of {parsed.tokens} tokens | p95 | median | tokens/s |")
    print("| --- | ---: | ---: | ---: |")
    for name, floods in found.items():
        firsts = [number for flood in floods for number in flood.first_token_s]
        print(
            f"| {name} | {statistics.median(flood.p95_s for flood in floods):.2f} "
            f"| {statistics.median(firsts):.2f} "
            f"| {statistics.median(flood.tokens_per_s for flood in floods):.0f} |"
        )
    print(f"\nTargets: p95 {_TARGET_S} s, tokens/s at least {_THROUGHPUT_TARGET} x the other.")
    return 0


def _served(model: Path, checkout: Path | None) -> tuple[Gateway, list[dict[str, str]]]:
    """A gateway with the model loaded, and the headers of two keys."""
    path = {} if checkout is None else {"PYTHONPATH": f"{checkout}{os.pathsep}"}
    gateway = Gateway(models=(f"{model}=demo",), environment=path)
    gateway.load()
    headers = []
    for name in ("flood", "short"):
        answer = gateway.client.post("/admin/v1/keys", json={"name": name}).raise_for_status()
        headers.append({"authorization": f"Bearer {answer.json()['key']}", **_DEADLINE})
        gateway.client.headers["x-api-key"] = (gateway.state_dir / "admin.key").read_text().strip()
    return gateway, headers


async def _round(
    url: str, keys: list[dict[str, str]], chance: random.Random, parsed: argparse.Namespace
) -> Flood:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=3600.0, limits=limits) as client:
        await _first_token_s(client, keys[1], _prompt(chance, 20))
        began = time.monotonic()
        flood = asyncio.gather(
            *(
                _first_token_s(client, keys[0], _prompt(chance, parsed.tokens))
                for _ in range(parsed.prompts)
            )
        )
        # The flood is there before the first chat.
        await asyncio.sleep(_EVERY_S)
        chats = []
        while not flood.done():
            asked = _first_token_s(client, keys[1], _prompt(chance, 20))
            chats.append(asyncio.create_task(asked))
            await asyncio.sleep(_EVERY_S)
        await flood
        firsts = await asyncio.gather(*chats)
        wall_s = time.monotonic() - began
    made = len(firsts) * (20 + _ANSWER_TOKENS)
    return Flood(firsts, wall_s, made + parsed.prompts * (parsed.tokens + _ANSWER_TOKENS))


def _prompt(chance: random.Random, tokens: int) -> list[int]:
    return [chance.choice(_VOCABULARY) for _ in range(tokens)]


async def _first_token_s(
    client: httpx.AsyncClient, headers: dict[str, str], prompt: list[int]
) -> float:
    """Stream an answer to its end. Returns the seconds until its first token."""
    body: dict[str, Any] = {
        "model": "demo",
        "prompt": prompt,
        "max_tokens": _ANSWER_TOKENS,
        "stream": True,
    }
    began, first_s = time.monotonic(), 0.0
    async with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        if answer.status_code != 200:
            raise SystemExit(f"bench.shares: {(await answer.aread()).decode()}")
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and not first_s:
                first_s = time.monotonic() - began
    return first_s


if __name__ == "__main__":
    sys.exit(main())
