"""Files that hang on read, as on a mount that has died."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.faults import hanging_files, hangs, sitecustomize
from tests.support.folders import short_folder
from tests.support.gateway import START_S, STOP_S, Gateway, eventually, gone
from tests.support.shapes import DEMO
from tests.support.streams import Probe, open_stream

pytestmark = pytest.mark.slow

STORY = "Tell me a story."
LONG = {"max_tokens": 120, "ignore_eos": True, "temperature": 0.0}
ANSWER_S = 4.0


def deadlines(answer_s: float, read_again_s: int) -> str:
    """Code for `sitecustomize`: a gateway waits so long for files. Longer in the product, but it
    is the same wait.
    """
    return f"""{hanging_files()}
    if any(each.endswith("bulkhead") for each in sys.orig_argv):
        import gateway.config.machine_rules, gateway.memory.estimator, gateway.models.model_memory
        gateway.config.machine_rules._ANSWER_S = gateway.memory.estimator._ANSWER_S = {answer_s}
        gateway.models.model_memory._RETRY_S = {read_again_s}
    """


def hanging_weights(folder: Path) -> Path:
    """The demo model, but the gateway's reading of its weights hangs."""
    shutil.copytree(DEMO, folder)
    hangs(folder / "model.safetensors").touch()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hanging")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Gateway]:
    """`weights` hangs for the gateway that estimates it, `tokenizer` for its worker only."""
    weights = hanging_weights(folder / "weights")
    tokenizer = folder / "tokenizer"
    shutil.copytree(DEMO, tokenizer)
    hangs(tokenizer / "tokenizer.json", "worker").touch()
    repository = folder / "cache" / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123abcd")
    (repository / "snapshots").mkdir()
    shutil.copytree(DEMO, repository / "snapshots" / "0123abcd")
    config = (
        f'[models.demo]\npath = "demo"\n[models.cached]\npath = "owner/name"\n'
        f'[models.weights]\npath = "{weights}"\n[models.tokenizer]\npath = "{tokenizer}"\n'
    )
    site = sitecustomize(folder / "site", deadlines(ANSWER_S, read_again_s=30))
    cache = {"HF_HUB_CACHE": str(folder / "cache")}
    running = Gateway(models=(), config=config, environment={**site, **cache})
    running.load("demo")
    yield running
    began = time.monotonic()
    # Two threads and a worker hang by now, and none of them is waited for.
    assert running.stop() == 0, running.log
    assert time.monotonic() - began < STOP_S / 2


def test_weights_that_hang_cost_their_model_only(gateway: Gateway, folder: Path) -> None:
    undisturbed = open_stream(gateway, STORY, **LONG).join().outcome
    threads = psutil.Process(gateway.pid).num_threads()
    with ThreadPoolExecutor(12) as pool, Probe(gateway, "/health") as health:
        asked = [pool.submit(gateway.chat, STORY, "weights") for _ in range(12)]
        eventually(lambda: gateway.model("weights")["queue_depth"] == 12)
        assert psutil.Process(gateway.pid).num_threads() <= threads + 2
        assert open_stream(gateway, STORY, **LONG).join().outcome == undisturbed
        for verb in ("kill", "load", "unload", "load"):
            # Each looks for what the worker has started, and the second one estimates.
            gateway.order(verb, force=verb == "kill").raise_for_status()
        answers = [future.result(120) for future in asked]
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "model_unavailable")
        assert f"{folder}/weights did not answer within {ANSWER_S:g} s" in error["message"]
        assert "a mount that has died" in error["message"]
        assert int(answer.headers["retry-after"]) > 0
    assert not health.failures
    model = gateway.model("weights")
    assert (model["state"], model["worker"]) == ("unloaded", None)
    assert "did not answer" in model["reason"]
    again = gateway.order("load", "weights")
    assert (again.status_code, "has not answered for" in again.text) == (503, True), again.text
    assert psutil.Process(gateway.pid).num_threads() <= threads + 2


def test_a_worker_that_hangs_in_its_load_is_ended(gateway: Gateway) -> None:
    for verb, options in (("kill", {}), ("kill", {"force": True})):
        gateway.order("load", "tokenizer", wait=False).raise_for_status()
        eventually(lambda: gateway.model("tokenizer")["state"] == "loading", START_S)
        pid = gateway.worker_pid("tokenizer")
        gateway.order(verb, "tokenizer", **options).raise_for_status()
        assert gateway.model("tokenizer")["state"] == "unloaded"
        assert gone(pid)


def test_a_reload_says_which_place_hangs(gateway: Gateway, folder: Path) -> None:
    hangs(folder / "cache" / "models--owner--name" / "refs" / "main").touch()
    threads = psutil.Process(gateway.pid).num_threads()
    # The second one finds that it hangs still.
    for _ in range(2):
        answer = gateway.client.post("/admin/v1/reload")
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert 'models."cached".path: owner/name did not answer within' in message
        assert f"{gateway.config_path}:4" in message
    # One looks for the model, one for what else the cache has, and one waits for them.
    assert psutil.Process(gateway.pid).num_threads() <= threads + 3
    assert gateway.say("Hello")


def test_files_that_answer_again_are_read(gateway: Gateway, folder: Path) -> None:
    """With the worker that hangs in its load this is also what the end of the gateway meets."""
    gateway.order("load", "tokenizer", wait=False).raise_for_status()
    eventually(lambda: gateway.model("tokenizer")["state"] == "loading", START_S)
    assert "has not answered" in gateway.order("load", "weights").text
    hangs(folder / "weights" / "model.safetensors").unlink()
    eventually(lambda: gateway.order("load", "weights").status_code == 200, START_S)


def test_pinned_model_is_tried_again(start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    """With smaller deadlines; the files answer meanwhile."""
    weights = hanging_weights(tmp_path / "m")
    running = start_gateway(
        models=(),
        config=f'[models.m]\npath = "{weights}"\npreload = true\n',
        environment=sitecustomize(tmp_path / "site", deadlines(0.5, read_again_s=1)),
    )
    eventually(lambda: "did not answer" in str(running.model("m")["reason"]), START_S)
    hangs(weights / "model.safetensors").unlink()
    eventually(lambda: running.model("m")["state"] == "ready", START_S)


def test_an_end_waits_for_no_log_that_hangs(start_gateway: Callable[..., Gateway]) -> None:
    with short_folder() as folder:
        running = start_gateway("--state-dir", folder)
        os.mkfifo(Path(folder) / "logs" / "demo.log")
        assert running.say("Hello")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(STOP_S / 2) == 0
