"""Requests made at random of /openapi.json, good ones and bad ones, and bytes that no client would
send, to one gateway: each is answered as documented, or its connection ends, and nothing of them
stays.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import pytest

from gateway.system.memory import footprint
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.openapi_fuzz import ASKED, ORDERED, ask_at_random, but
from tests.support.raw_fuzz import send_at_random

pytestmark = pytest.mark.slow

STORY: Final = "Tell me a story."
# Of memory and descriptors, once what is kept for good is there.
SHARE: Final = 1.05
# It puts another gateway into the place of the one that is watched: it is asked for at the end.
UPGRADE: Final = "post_admin_v1_upgrade"
# From then on nobody is served without a key: who has the admin key asks for it.
NEW_KEY: Final = "post_admin_v1_keys"
# It answers when the check has ended, after more seconds than others have for an answer.
CHECK: Final = "post_admin_v1_models_model_id_check"


class Amount(NamedTuple):
    """Requests as bytes, and examples of each operation in these phases of schemathesis."""

    requests: int
    phases: str
    examples: int


class Fuzz:
    """Counts what it sends to one gateway, and how that is answered."""

    def __init__(self, gateway: Gateway, folder: Path, seed: int) -> None:
        self.requests = 0
        self.statuses: Counter[int] = Counter()
        self._gateway = gateway
        self._folder = folder
        self._chance = random.Random(seed)

    def without_keys(self, amount: Amount) -> None:
        self._send(amount.requests)
        self._ask(amount, but(UPGRADE, NEW_KEY, CHECK))

    def with_keys(self, amount: Amount) -> None:
        """As nobody, as who has a key, and as who has the admin key."""
        client = self._gateway.client
        key = client.post("/admin/v1/keys", json={"name": "theirs"}).raise_for_status().json()
        admin_key = (self._gateway.state_dir / "admin.key").read_text("utf-8").strip()
        client.headers["authorization"] = f"Bearer {admin_key}"
        self._send(amount.requests)
        self._ask(amount, key=key["key"])
        self._ask(amount, but(UPGRADE, CHECK), key=admin_key)

    def upgrade(self, amount: Amount) -> None:
        key = self._gateway.client.headers["authorization"].removeprefix("Bearer ")
        self._ask(amount._replace(phases="fuzzing"), ["--include-operation-id", UPGRADE], key=key)

    def _send(self, requests: int) -> None:
        made, statuses = send_at_random(self._gateway, self._chance, requests)
        self.requests += made
        self.statuses += statuses

    def _ask(self, amount: Amount, options: Sequence[str] = (), key: str | None = None) -> None:
        statuses = ask_at_random(
            self._gateway,
            self._folder,
            amount.phases,
            amount.examples,
            *("--seed", str(self._chance.randrange(1 << 32)), *options),
            key=key,
        )
        self.requests += statuses.total()
        self.statuses += statuses


@pytest.mark.parametrize(
    ("kept", "amount", "least"),
    [
        pytest.param(0, Amount(50, "fuzzing", 1), 200, id="short"),
        pytest.param(
            1000,
            Amount(4000, "examples,coverage,fuzzing,stateful", 15),
            20_000,
            id="long",
            marks=pytest.mark.chaos,
        ),
    ],
)
@pytest.mark.timeout(7200)
def test_nothing_undocumented_comes_and_nothing_stays(
    kept: int,
    amount: Amount,
    least: int,
    start_gateway: Callable[..., Gateway],
    tmp_path: Path,
    tell: Callable[..., None],
    seed: int,
) -> None:
    gateway = start_gateway(
        models=("demo", f"demo={ORDERED}"),
        # No hub, and a home where nobody's models lie to be removed.
        environment={"HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"},
    )
    process = psutil.Process(gateway.pid)
    whole = gateway.say(STORY, temperature=0.0, max_tokens=20)
    pid = gateway.worker_pid()
    fuzz = Fuzz(gateway, tmp_path, seed)
    _fill(gateway, kept)
    fuzz.without_keys(amount)
    # By now imports, caches and the allocator have what they keep for good.
    before, files = _settled(gateway), process.num_fds()
    fuzz.with_keys(amount)
    after = _settled(gateway)
    tell(
        requests=fuzz.requests,
        **{f"status_{status}": count for status, count in sorted(fuzz.statuses.items())},
        memory_mb=f"{before / 1e6:.1f} -> {after / 1e6:.1f}",
        descriptors=f"{files} -> {process.num_fds()}",
    )
    assert fuzz.requests >= least
    eventually(lambda: process.num_fds() <= files * SHARE)
    assert after <= before * SHARE
    assert {200, 400, 401, 403, 404} <= set(fuzz.statuses)
    assert gateway.client.get("/health").json()["faults"] == []
    assert gateway.worker_pid() == pid
    assert gateway.say(STORY, temperature=0.0, max_tokens=20) == whole
    fuzz.upgrade(amount)
    assert gateway.say(STORY, temperature=0.0, max_tokens=20) == whole
    assert "Traceback" not in gateway.log


def _fill(gateway: Gateway, count: int) -> None:
    """What is kept up to a bound: pages of the mailbox's file, and a thousand events."""
    asked = {"model": ASKED, "input": "Hello " * 300, "max_output_tokens": 1}
    for _ in range(count):
        assert gateway.client.post("/v1/responses", json=asked).status_code == 200
        too_long = chat_body("Hello " * 10_000, ASKED)
        assert gateway.client.post("/v1/chat/completions", json=too_long).status_code == 400


def _settled(gateway: Gateway) -> int:
    """The gateway's bytes, as it counts them itself, once both models are there and idle."""
    for text in (ASKED, ORDERED):
        gateway.load(text)
        eventually(
            lambda name=text: (
                not (gateway.model(name)["active_requests"] + gateway.model(name)["queue_depth"])
            ),
            # What was asked for in the background runs to its end.
            START_S,
        )
    return footprint(gateway.pid).current_bytes
