"""What becomes of a request, and of what a worker leaves, when the worker is lost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from gateway.system.state_dir import lock_holder
from tests.cli.terminal import bulkhead
from tests.support.faults import (
    EAGER_SPARES,
    after_import,
    held_load,
    in_engine_step,
    sitecustomize,
    wrapped_python,
)
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.limits import no_descriptors
from tests.support.platforms import linux_only
from tests.support.shapes import DEMO
from tests.support.streams import open_stream

STORY = "Tell me a story."
LONG = {"max_tokens": 200, "ignore_eos": True}
# Imports at the lowest priority wait for whoever else computes.
SPARE_S = 300.0


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(DEMO, folder)
    return folder


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture
def flags(faults: Path) -> Iterator[Path]:
    """A folder to touch files in: while `held` is there no load of `gateway` goes on, while
    `broken` is there each crashes, while `slow` is there every step takes its time.
    """
    yield faults
    for path in faults.iterdir():
        path.unlink()


@pytest.fixture(scope="module")
def gateway(faults: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One with the demo model, whose faults are switched by flags."""
    crashing = after_import(
        "worker.load.loading",
        f"""
        import os
        original = module.load
        def load(*arguments, **options):
            if os.path.exists({str(faults / "broken")!r}):
                print("no such luck", flush=True)
                os._exit(9)
            return original(*arguments, **options)
        module.load = load
        """,
    )
    slow = in_engine_step(f"time.sleep(0.05 * os.path.exists({str(faults / 'slow')!r}))")
    running = Gateway(
        config="[workers]\nrestart_limit = 1\nbackoff_limit = 1\nbackoff_first_s = 0.2\n",
        environment=sitecustomize(
            tmp_path_factory.mktemp("site"), held_load(faults / "held") + crashing + slow
        ),
    )
    yield running
    assert running.stop() == 0, running.log


class TestRequests:
    @pytest.mark.slow
    def test_another_model_in_the_same_folder_does_not_go_on(
        self, start_gateway: Callable[..., Gateway], copy: Path
    ) -> None:
        running = start_gateway(models=(str(copy),))
        running.load("copy")
        stream = open_stream(running, STORY, "copy", **LONG)
        eventually(lambda: stream.text, START_S)
        template = copy / "chat_template.jinja"
        template.write_text(template.read_text() + "{# changed #}")
        os.kill(running.worker_pid("copy"), signal.SIGKILL)
        stream.join()
        assert not stream.done
        assert stream.error["code"] == "model_unavailable"
        assert "files of 'copy' changed" in stream.error["message"]
        assert running.say("Hello", "copy")

    @pytest.mark.slow
    def test_a_client_that_leaves_cancels_its_parked_request(
        self, gateway: Gateway, flags: Path
    ) -> None:
        gateway.load()
        (flags / "held").touch()
        with httpx.Client(timeout=60) as client:
            body = chat_body(STORY, stream=True, **LONG)
            url = f"{gateway.url}/v1/chat/completions"
            with client.stream("POST", url, json=body) as answer:
                lines = answer.iter_lines()
                next(line for line in lines if '"content"' in line)
                os.kill(gateway.worker_pid(), signal.SIGKILL)
                eventually(lambda: gateway.model()["queue_depth"] == 1)
        eventually(lambda: gateway.model()["queue_depth"] == 0, START_S)

    @pytest.mark.slow
    def test_parked_time_counts_toward_the_deadline(self, gateway: Gateway, flags: Path) -> None:
        gateway.load()
        (flags / "held").touch()
        (flags / "slow").touch()
        stream = open_stream(gateway, STORY, headers={"X-Deadline-S": "2"}, **LONG)
        eventually(lambda: stream.text, START_S)
        # What runs is not waiting.
        eventually(lambda: gateway.model()["oldest_active_s"] > 2.5)
        assert stream.error is None
        os.kill(gateway.worker_pid(), signal.SIGKILL)
        stream.join()
        assert (stream.done, stream.error["code"]) == (False, "deadline_exceeded")

    @pytest.mark.slow
    def test_ordered_deaths_count_against_nobody(self, gateway: Gateway, flags: Path) -> None:
        """The policy would give up after two, and a request may be under one at most."""
        fields = {"max_tokens": 100, "ignore_eos": True}
        gateway.load()
        whole = gateway.say(STORY, **fields)
        (flags / "slow").touch()
        stream = open_stream(gateway, STORY, **fields)
        eventually(lambda: stream.text, START_S)
        restarts, judged = gateway.model()["restarts"], len(gateway.events("breaker"))
        for _ in range(3):
            eventually(lambda: gateway.model()["active_requests"] == 1, START_S)
            gateway.order("kill", force=True).raise_for_status()
        (flags / "slow").unlink()
        assert stream.join().text == whole
        parked_at = [event["delivered_tokens"] for event in gateway.events("park")[-3:]]
        assert 0 < parked_at[0] <= parked_at[-1] < parked_at[0] + 32
        assert (gateway.model()["state"], gateway.model()["restarts"]) == ("ready", restarts)
        assert len(gateway.events("breaker")) == judged

    @pytest.mark.slow
    def test_the_breaker_answers_those_that_are_parked(self, gateway: Gateway, flags: Path) -> None:
        gateway.load()
        (flags / "broken").touch()
        stream = open_stream(gateway, STORY, **LONG)
        eventually(lambda: stream.text, START_S)
        os.kill(gateway.worker_pid(), signal.SIGKILL)
        stream.join()
        assert stream.error["code"] == "model_unavailable"
        model = gateway.model()
        assert model["state"] == "failed"
        for part in ("exit code 9", "no such luck", "next attempt comes at", "bulkhead load demo"):
            assert part in model["reason"]
        (flags / "broken").unlink()
        assert gateway.load()["state"] == "ready", "an operator's load closes the breaker"

    @pytest.mark.slow
    def test_the_breaker_lets_one_start_be_tried(
        self, start_gateway: Callable[..., Gateway], tmp_path: Path
    ) -> None:
        broken = tmp_path / "broken"
        broken.touch()
        code = f"import os\nif in_worker() and os.path.exists({str(broken)!r}): os._exit(9)\n"
        running = start_gateway(
            config="[workers]\nrestart_limit = 0\nbackoff_limit = 0\nbreaker_retry_s = 2.0\n",
            environment=sitecustomize(tmp_path / "site", code),
        )
        assert running.chat("Hello").status_code == 503
        assert running.model()["state"] == "failed"
        broken.unlink()
        eventually(lambda: running.model()["state"] == "unloaded")
        assert running.say("Hello")


class TestWhatIsLeft:
    @pytest.mark.slow
    def test_grandchildren_end_with_their_worker(
        self, start_gateway: Callable[..., Gateway], tmp_path: Path
    ) -> None:
        pid_file = tmp_path / "pid"
        running = start_gateway(
            environment=sitecustomize(
                tmp_path / "site",
                after_import(
                    "worker.load.loading",
                    f"""
                    import subprocess
                    child = subprocess.Popen(["sleep", "300"])
                    open({str(pid_file)!r}, "w").write(str(child.pid))
                    """,
                ),
            )
        )
        running.load()
        grandchild = psutil.Process(int(pid_file.read_text()))
        running.order("unload").raise_for_status()
        eventually(lambda: not grandchild.is_running() or grandchild.status() == "zombie")


class TestSpare:
    @pytest.mark.slow
    def test_is_adopted_counted_and_replaced(
        self, start_gateway: Callable[..., Gateway], tmp_path: Path
    ) -> None:
        python = wrapped_python(tmp_path / "python")
        running = start_gateway(
            *("--spare", "1"),
            config=f'[models.own]\npath = "demo"\npython = "{python}"\n',
            environment=sitecustomize(tmp_path / "site", EAGER_SPARES),
        )
        eventually(lambda: "change=ready" in running.log, START_S)
        (spare,) = psutil.Process(running.pid).children()
        eventually(lambda: (running.status()["memory"]["footprint_bytes"] or 0) > 20_000_000)
        other = running.load("own")["worker"]["pid"]
        assert other != spare.pid, "an interpreter of its own does without"
        assert running.say("Hello", "own")
        assert running.load()["worker"]["pid"] == spare.pid
        assert f"event=adopt model=demo pid={spare.pid}" in running.log
        eventually(lambda: running.log.count("change=ready") == 2, START_S)
        assert len(psutil.Process(running.pid).children()) == 3

    @pytest.mark.slow
    @linux_only("reads nice values from /proc")
    def test_its_imports_give_way(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway("--spare", "1")
        (spare,) = eventually(lambda: psutil.Process(running.pid).children(), START_S)
        eventually(lambda: 19 in _nice_values(spare.pid), every_s=0.01, within_s=START_S)
        eventually(lambda: "change=ready" in running.log, SPARE_S)
        # The thread that imported is gone a moment later.
        eventually(lambda: _nice_values(spare.pid) == {0})
        assert running.load()["worker"]["pid"] == spare.pid
        assert running.say("Hello")
        assert _nice_values(spare.pid) == {0}

    @pytest.mark.slow
    def test_a_crash_loop_of_spares_ends(
        self, start_gateway: Callable[..., Gateway], tmp_path: Path
    ) -> None:
        code = 'if in_worker() and "--spare" in sys.orig_argv: import os; os._exit(4)\n'
        running = start_gateway(
            "--spare",
            "1",
            config="[workers]\nrestart_limit = 2\nbackoff_limit = 1\nbackoff_first_s = 0.1\n",
            environment=sitecustomize(tmp_path / "site", code),
        )
        eventually(lambda: 'verdict="give up"' in running.log, START_S)
        lost = running.log.count("change=lost")
        assert running.say("Hello"), "models don't need it"
        assert running.log.count("change=lost") == lost == 4


def _nice_values(pid: int) -> set[int]:
    """Of all threads: the 19th field of proc_pid_stat(5), the second of which is in parentheses."""
    values = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            values.add(int((thread / "stat").read_text().rpartition(")")[2].split()[16]))
    return values


class TestDeepHealth:
    def test_of_a_model_that_works(self, gateway: Gateway) -> None:
        gateway.order("unload").raise_for_status()
        sleeping = gateway.client.get("/health?deep=demo")
        assert (sleeping.status_code, sleeping.json()["deep"]["reason"]) == (503, "it is unloaded")
        gateway.load()
        used_at = gateway.model()["last_used_at"]
        answer = gateway.client.get("/health?deep=demo")
        assert answer.status_code == 200
        deep = answer.json()["deep"]
        assert (deep["model"], deep["ok"], deep["reason"]) == ("demo", True, None)
        assert deep["seconds"] > 0
        assert gateway.model()["last_used_at"] == used_at, "a probe is no use"
        assert gateway.client.get("/health?deep=nobody").status_code == 404
        assert "deep" not in gateway.client.get("/health").json()

    @pytest.mark.slow
    def test_of_a_wedged_model(self, start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
        running = start_gateway(
            environment=sitecustomize(tmp_path / "site", in_engine_step("time.sleep(3600)"))
        )
        running.load()
        answer = running.client.get("/health?deep=demo", headers={"X-Deadline-S": "1"})
        assert answer.status_code == 503
        assert answer.json()["status"] == "degraded"
        assert answer.json()["deep"]["reason"] == "no token within 1 s"
        assert running.model()["active_requests"] == 0
        # It wouldn't hear the polite word of the gateway's end.
        running.order("kill", force=True).raise_for_status()


class TestNoHalfWay:
    """Whatever goes wrong between a worker's end and the next, supervision goes on."""

    @pytest.mark.slow
    def test_backoffs_without_a_pause(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway(
            config="[workers]\nrestart_limit = 0\nbackoff_first_s = 0\nbackoff_longest_s = 0\n"
        )
        running.load()
        whole = running.say(STORY, max_tokens=150, ignore_eos=True)
        stream = open_stream(running, STORY, max_tokens=150, ignore_eos=True)
        eventually(lambda: stream.text, START_S)
        os.kill(running.worker_pid(), signal.SIGKILL)
        assert stream.join().text == whole

    @pytest.mark.slow
    def test_no_descriptors_for_another_worker(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway(config="[workers]\nbackoff_first_s = 0.5\n")
        running.load()
        stream = open_stream(running, STORY, **LONG)
        eventually(lambda: stream.text, START_S)
        # A new connection to ask for the pid would get no descriptor.
        pid = running.worker_pid()
        with no_descriptors(running.pid):
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: running.log.count('verdict="back off"') >= 2, START_S)
        assert "Too many open files" in running.log
        assert stream.join().done
        assert running.say("Hello")

    @pytest.mark.slow
    def test_no_descriptors_for_another_spare(self, start_gateway: Callable[..., Gateway]) -> None:
        """What a lost worker leaves is enough to adopt a spare, and not enough to start one."""
        running = start_gateway("--spare", "1", config="[workers]\nbackoff_first_s = 0.5\n")
        eventually(lambda: running.log.count("change=ready") == 1, SPARE_S)
        running.load()
        eventually(lambda: running.log.count("change=ready") == 2, SPARE_S)
        stream = open_stream(running, STORY, **LONG)
        eventually(lambda: stream.text, START_S)
        # A new connection to ask for the pid would get no descriptor.
        pid = running.worker_pid()
        with no_descriptors(running.pid):
            os.kill(pid, signal.SIGKILL)
            assert stream.join().done
            eventually(lambda: running.log.count('change="not started"') >= 2, START_S)
        eventually(lambda: running.log.count("change=ready") == 3, SPARE_S)
        assert running.log.count("event=adopt") == 2
        assert running.say("Hello")

    @pytest.mark.slow
    def test_the_state_folder_is_removed(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway()
        for removed in ("run", "workers", "logs", "."):
            shutil.rmtree(running.state_dir / removed, ignore_errors=True)
            assert running.order("restart").json()["state"] == "ready"
            assert running.say("Hello")
            recorded = running.state_dir / "workers" / f"{running.worker_pid()}.json"
            assert recorded.exists()
            eventually((running.state_dir / "logs" / "demo.log").exists)
            eventually((running.state_dir / "logs" / "gateway.log").exists)
        assert lock_holder(running.state_dir) == running.pid

    @pytest.mark.slow
    def test_requests_that_cross_the_end_of_a_worker(
        self, start_gateway: Callable[..., Gateway]
    ) -> None:
        running = start_gateway("--spare", "1")
        for _ in range(4):
            running.load()
            os.kill(running.worker_pid(), signal.SIGTERM)
            for _ in range(4):
                assert running.say("Hello", max_tokens=2)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "line", ["backoff_first_s = inf", "breaker_retry_s = nan", "load_timeout_s = 0"]
    )
    def test_times_that_cannot_be(self, line: str, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        config.write_text(f"[workers]\n{line}\n")
        refused = bulkhead("serve", "--config", str(config), "--model", "demo", "--port", "0")
        assert refused.returncode == 2
        assert line.partition(" ")[0] in refused.stderr


class TestEvents:
    @pytest.mark.slow
    def test_a_life_is_told(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway()
        running.load()
        stream = open_stream(running, STORY, **LONG)
        eventually(lambda: stream.text, START_S)
        killed = running.worker_pid()
        os.kill(killed, signal.SIGKILL)
        stream.join()
        running.order("unload").raise_for_status()
        text = running.client.get("/admin/v1/events?follow=0").text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        kinds = [event["event"] for event in events if event["event"] != "state"]
        begin, end = ["admit", "start", "ready", "exit", "park", "admit", "start"], ["exit"]
        # A worker's ready and what it is sent at once are told in either order.
        assert kinds[:-1] in ([*begin, "resume", "ready"], [*begin, "ready", "resume"])
        assert kinds[-1:] == end
        states = [event["after"] for event in events if event["event"] == "state"]
        assert states[:4] == ["waiting", "starting", "loading", "ready"]
        assert states[-1] == "unloaded"
        first_exit = next(event for event in events if event["event"] == "exit")
        assert (first_exit["pid"], first_exit["signal"]) == (killed, "SIGKILL")
        park = next(event for event in events if event["event"] == "park")
        assert park["delivered_tokens"] > 0
        first = events[0]["id"]
        assert [event["id"] for event in events] == list(range(first, first + len(events)))
        for kind in set(kinds):
            assert f"event={kind} model=demo" in running.log

        rest = running.client.get(
            "/admin/v1/events?follow=0", headers={"Last-Event-ID": f"{first + 2}"}
        ).text
        assert rest == text[text.index(f"id: {first + 3}\n") :]
        last_two = running.client.get("/admin/v1/events?follow=0&recent=2").text
        assert last_two.count("data: ") == 2
        refused = running.client.get("/admin/v1/events?recent=x")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "recent")

    def test_followers_see_what_comes(self, gateway: Gateway) -> None:
        gateway.order("unload").raise_for_status()
        with gateway.client.stream("GET", "/admin/v1/events") as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith(":")
            gateway.order("load", wait=False)
            assert next(line for line in lines if line.startswith("event: ")) == "event: state"

    @pytest.mark.slow
    def test_on_the_command_line(self, gateway: Gateway) -> None:
        gateway.order("restart").raise_for_status()
        shown = bulkhead("events", url=gateway.url)
        assert shown.returncode == 0
        assert "demo  ready  pid=" in shown.stdout
        as_json = bulkhead("events", "--json", "-n", "2", url=gateway.url)
        assert len([json.loads(line) for line in as_json.stdout.splitlines()]) == 2
        gateway.client.get("/v1/models/none")
        of_model = bulkhead("events", "--model", "demo", "-n", "3", url=gateway.url)
        assert [text.split()[2] for text in of_model.stdout.splitlines()] == ["demo"] * 3
        nobody = bulkhead("events", "--model", "nobody", url=gateway.url)
        assert (nobody.returncode, nobody.stdout) == (4, "")
        assert "nobody" in nobody.stderr
