"""What clients and operators see of a model whose numbers are wrong, and of answers that loop."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from tests.cli.terminal import bulkhead
from tests.support.faults import in_engine_step, sitecustomize
from tests.support.gateway import Gateway
from tests.support.shapes import DEMO
from tests.support.streams import open_stream

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

    shown = bulkhead("status", "demo", url=gateway.url).stdout
    assert "demo: the worker is plain, since the numbers of an answer were wrong" in shown

    flag.unlink()
    gateway.order("restart", wait=True).raise_for_status()
    assert gateway.say("Hello") == whole
    assert not gateway.model()["plain"]


def test_files_with_wrong_numbers_are_loaded_and_told_by_requests(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    folder = tmp_path / "wrong"
    shutil.copytree(DEMO, folder)
    (file,) = folder.glob("*.safetensors")
    weights = mx.load(str(file))
    name = next(name for name in weights if name.endswith("norm.weight"))
    mx.save_safetensors(str(file), weights | {name: weights[name] * mx.nan}, {"format": "mlx"})
    gateway = start_gateway(models=(f"{folder}=wrong",))
    gateway.load("wrong")
    assert gateway.model("wrong")["invalid_outputs"] == 0, "nobody has asked"
    answer = gateway.chat("Hello", "wrong")
    assert answer.json()["error"]["code"] == "model_output_invalid"
    vectors = gateway.client.post("/v1/embeddings", json={"model": "wrong", "input": "Hello"})
    assert vectors.json()["error"]["code"] == "model_output_invalid"
    model = gateway.model("wrong")
    assert (model["state"], model["plain"], model["invalid_outputs"]) == ("ready", True, 4)
    assert not gateway.events("cache_quarantined")


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
