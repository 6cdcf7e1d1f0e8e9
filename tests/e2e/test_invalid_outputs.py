"""What clients and operators see of a model whose numbers are wrong, and of answers that loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.faults import in_engine_step, sitecustomize
from tests.support.gateway import Gateway
from tests.support.streams import open_stream

STARTED = ("start", "adopt")
# A token that is text.
LOOPED = {"allowed_token_ids": [300], "ignore_eos": True, "temperature": 0}


def _faulty(flag: Path) -> str:
    """While the flag is there, every worker's weights are wrong."""
    return in_engine_step(
        f"""
if os.path.exists({str(flag)!r}):
    import mlx.core as mx
    from mlx.utils import tree_flatten
    tree_flatten(self._model.parameters())[-1][1][...] = mx.nan
"""
    )


def test_an_answer_that_is_never_valid_ends_with_the_named_error(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    flag = tmp_path / "faulty"
    gateway = start_gateway(
        "--spare", "1", environment=sitecustomize(tmp_path / "site", _faulty(flag))
    )
    whole = gateway.say("Hello")
    flag.touch()
    answer = gateway.chat("Hello")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "model_output_invalid")
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert "computed again without cached blocks, and again in a fresh worker" in error["message"]
    model = gateway.model()
    assert (model["plain"], model["invalid_outputs"], model["restarts"]) == (True, 3, 0)

    stream = open_stream(gateway, "Hello").join()
    assert (stream.text, stream.error and stream.error["code"]) == ("", "model_output_invalid")
    message = gateway.client.post(
        "/v1/messages",
        json={
            "model": "demo",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Hello"}],
        },
    )
    assert message.status_code == 500
    tries = [event["next_try"] for event in gateway.events("output_invalid")]
    assert len(tries) == gateway.model()["invalid_outputs"] == 7
    assert sum(tried.startswith("in a fresh worker") for tried in tries) == 1
    assert gateway.model()["state"] == "ready"
    metrics = gateway.client.get("/metrics").text
    assert 'bulkhead_invalid_outputs_total{model_name="demo"} 7.0' in metrics
    assert 'bulkhead_worker_restarts_total{cause="invalid output",model_name="demo"} 1.0' in metrics

    flag.unlink()
    gateway.order("restart", wait=True).raise_for_status()
    assert gateway.say("Hello") == whole
    assert not gateway.model()["plain"]


def test_an_answer_that_loops_is_cut_off_if_asked(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway()
    body = {"model": "demo", "prompt": "On and on", "max_tokens": 1200, **LOOPED}

    def ask(path: str = "/v1/completions", **fields: object) -> tuple[str, int]:
        answer = gateway.client.post(path, json={**body, **fields}).raise_for_status().json()
        return answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]

    assert ask() == ("length", 1200)
    assert ask(repetition_stop=True) == ("stop", 1024)
    assert ask(repetition_stop=True, max_tokens=1000) == ("length", 1000)
    assert ask(repetition_stop=False) == ("length", 1200)
    model = gateway.model()
    assert (model["looped_answers"], model["repetition_stops"]) == (3, 1)
    metrics = gateway.client.get("/metrics").text
    assert 'bulkhead_repetition_stops_total{model_name="demo"} 1.0' in metrics
    assert 'bulkhead_looped_answers_total{model_name="demo"} 3.0' in metrics
