"""What a worker says of its cached prompts reaches the operator, with a scripted worker."""

from __future__ import annotations

from pathlib import Path

from tests.cli.terminal import bulkhead
from tests.support.faults import interpreter
from tests.support.gateway import Gateway, eventually

WRONG_TWICE = """
socket = connect()
socket.send(encode(hello()))
order = decode_from_gateway(socket.recv())
socket.send(encode(ready()))
if order.cache_failures < 2:
    for off in (False, True):
        socket.send(encode(CacheQuarantined(
            blocks=3, blocks_bytes=300, source="a prompt joined of 3 blocks", why="bits"
        )))
        socket.send(encode(CacheProven(blocks=8, tokens=512, failures=1, off=off)))
while True:
    if not socket.poll(500):
        socket.send(encode(heartbeat()))
        continue
    match decode_from_gateway(socket.recv()):
        case ClearPromptCache():
            socket.send(encode(PromptCacheCleared(reclaimed_bytes=0)))
        case Stop():
            sys.exit(0)
"""


def test_a_cache_that_was_wrong_twice_is_off_until_it_is_cleared(tmp_path: Path) -> None:
    python = interpreter(tmp_path / "worker", WRONG_TWICE)
    config = f'[models.m]\npath = "demo"\npreload = true\npython = "{python}"\n'
    gateway = Gateway(models=(), config=config)
    eventually(lambda: (gateway.model("m")["cache_proof"] or {}).get("off"))
    proof = gateway.model("m")["cache_proof"]
    assert (proof["proven_tokens"], proof["proven_blocks"]) == (1024, 16)
    assert (proof["quarantined_blocks"], proof["failures"]) == (6, 2)
    event = gateway.events("cache_quarantined")[-1]
    assert (event["blocks"], event["why"], event["model"]) == (3, "bits", "m")
    metrics = gateway.client.get("/metrics").text
    assert 'bulkhead_quarantined_blocks_total{model_name="m"} 6.0' in metrics
    assert 'bulkhead_proven_tokens_total{model_name="m"} 1024.0' in metrics
    status = bulkhead("status", "m", url=gateway.url).stdout
    assert "6 blocks are in quarantine" in " ".join(status.split())
    gateway.client.post("/admin/v1/models/m/restart").raise_for_status()
    assert gateway.model("m")["cache_proof"]["failures"] == 2, "the next worker knows"
    gateway.client.post("/admin/v1/models/m/prompt-cache/clear").raise_for_status()
    proof = gateway.model("m")["cache_proof"]
    assert (proof["off"], proof["failures"], proof["quarantined_blocks"]) == ("", 0, 0)
    assert gateway.stop() == 0, gateway.log
