"""What becomes of a request, and of what a worker leaves, when the worker is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cli.terminal import bulkhead
from tests.support.faults import after_import, in_engine_step, sitecustomize
from tests.support.gateway import Gateway, eventually
from tests.support.shapes import DEMO
from tests.support.streams import open_stream

STORY = "Tell me a story."
LONG = {"max_tokens": 1000, "ignore_eos": True}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(DEMO, folder)
    return folder


class TestRequests:
    def test_another_model_in_the_same_folder_does_not_go_on(
        self, start_gateway: Callable[..., Gateway], copy: Path
    ) -> None:
        running = start_gateway(models=(str(copy),))
        running.load("copy")
        stream = open_stream(running, STORY, "copy", **LONG)
        eventually(lambda: stream.text)
        template = copy / "chat_template.jinja"
        template.write_text(template.read_text() + "{# changed #}")
        os.kill(running.worker_pid("copy"), signal.SIGKILL)
        stream.join(30)
        assert not stream.done
        assert stream.error["code"] == "model_unavailable"
        assert "files of 'copy' changed" in stream.error["message"]
        assert running.say("What is Bulkhead?", "copy")

    def test_a_client_that_leaves_cancels_its_parked_request(
        self, start_gateway: Callable[..., Gateway], tmp_path: Path
    ) -> None:
        slow = tmp_path / "slow"
        running = start_gateway(
            environment=sitecustomize(tmp_path / "site", _slow_load_while(slow))
        )
        running.load()
        slow.touch()
        with httpx.Client(timeout=60) as client:
            body = {"model": "demo", "messages": [{"role": "user", "content": STORY}], **LONG}
            url = f"{running.url}/v1/chat/completions"
            with client.stream("POST", url, json={**body, "stream": True}) as answer:
                lines = answer.iter_lines()
                next(each for each in lines if '"content"' in each)
                os.kill(running.worker_pid(), signal.SIGKILL)
                eventually(lambda: running.model()["queue_depth"] == 1)
        eventually(lambda: running.model()["queue_depth"] == 0)
        slow.unlink()

    def test_parked_time_counts_toward_the_deadline(
        self, start_gateway: Callable[..., Gateway], tmp_path: Path
    ) -> None:
        slow = tmp_path / "slow"
        running = start_gateway(
            environment=sitecustomize(tmp_path / "site", _slow_load_while(slow))
        )
        running.load()
        slow.touch()
        stream = open_stream(running, STORY, headers={"X-Deadline-S": "2"}, **LONG)
        eventually(lambda: stream.text)
        time.sleep(2.5)  # What runs is not waiting.
        assert stream.error is None
        os.kill(running.worker_pid(), signal.SIGKILL)
        stream.join(20)
        assert (stream.done, stream.error["code"]) == (False, "deadline_exceeded")
        slow.unlink()

    def test_the_breaker_answers_those_that_are_parked(
        self, start_gateway: Callable[..., Gateway], tmp_path: Path
    ) -> None:
        broken = tmp_path / "broken"
        running = start_gateway(
            config="[workers]\nrestart_limit = 1\nbackoff_limit = 1\nbackoff_first_s = 0.2\n",
            environment=sitecustomize(
                tmp_path / "site",
                after_import(
                    "worker.loading",
                    f"""
                    import os
                    original = module.load
                    def load(*arguments):
                        if os.path.exists({str(broken)!r}):
                            print("no such luck", flush=True)
                            os._exit(9)
                        return original(*arguments)
                    module.load = load
                    """,
                ),
            ),
        )
        running.load()
        broken.touch()
        stream = open_stream(running, STORY, **LONG)
        eventually(lambda: stream.text)
        os.kill(running.worker_pid(), signal.SIGKILL)
        stream.join(30)
        assert stream.error["code"] == "model_unavailable"
        model = running.model()
        assert model["state"] == "failed"
        for part in ("exit code 9", "no such luck", "next attempt comes at", "bulkhead load demo"):
            assert part in model["reason"]
        broken.unlink()
        assert running.load()["state"] == "ready", "an operator's load closes the breaker"

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
        assert running.say("What is Bulkhead?")


def _slow_load_while(flag: Path) -> str:
    return after_import(
        "worker.loading",
        f"""
        import os, time
        original = module.load
        def load(*arguments):
            while os.path.exists({str(flag)!r}):
                time.sleep(0.1)
            return original(*arguments)
        module.load = load
        """,
    )


class TestWhatIsLeft:
    def test_grandchildren_end_with_their_worker(
        self, start_gateway: Callable[..., Gateway], tmp_path: Path
    ) -> None:
        pid_file = tmp_path / "pid"
        running = start_gateway(
            environment=sitecustomize(
                tmp_path / "site",
                after_import(
                    "worker.loading",
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

    def test_a_gateway_that_was_paused_judges_nobody(
        self, start_gateway: Callable[..., Gateway]
    ) -> None:
        running = start_gateway(
            config="[workers]\nheartbeat_timeout_s = 2.0\nstall_timeout_s = 2.0\n"
        )
        whole = running.say(STORY, max_tokens=500, ignore_eos=True)
        pid = running.worker_pid()
        stream = open_stream(running, STORY, max_tokens=500, ignore_eos=True)
        eventually(lambda: stream.text)
        os.kill(running.pid, signal.SIGSTOP)
        time.sleep(4)
        os.kill(running.pid, signal.SIGCONT)
        assert stream.join().text == whole
        assert running.worker_pid() == pid


class TestSpare:
    def test_is_adopted_counted_and_replaced(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway("--spare", "1")
        eventually(lambda: "change=ready" in running.log)
        (spare,) = psutil.Process(running.pid).children()
        eventually(lambda: running.status()["memory"]["footprint_bytes"] > 20_000_000)
        assert running.load()["worker"]["pid"] == spare.pid
        assert f"event=adopt model=demo pid={spare.pid}" in running.log
        eventually(lambda: running.log.count("change=ready") == 2)
        assert len(psutil.Process(running.pid).children()) == 2

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
        eventually(lambda: 'verdict="give up"' in running.log)
        lost = running.log.count("change=lost")
        time.sleep(1.5)
        assert running.log.count("change=lost") == lost == 4
        assert running.say("What is Bulkhead?"), "models don't need it"

    def test_a_model_with_its_own_python_does_without(
        self, start_gateway: Callable[..., Gateway], tmp_path: Path
    ) -> None:
        import sys

        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        running = start_gateway(
            "--spare", "1", models=(), config=f'[models.demo]\npath="demo"\npython="{python}"\n'
        )
        eventually(lambda: "change=ready" in running.log)
        (spare,) = psutil.Process(running.pid).children()
        assert running.load()["worker"]["pid"] != spare.pid
        assert running.say("What is Bulkhead?")


class TestDeepHealth:
    def test_of_a_model_that_works(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway()
        sleeping = running.client.get("/health?deep=demo")
        assert (sleeping.status_code, sleeping.json()["deep"]["reason"]) == (503, "it is unloaded")
        running.load()
        used_at = running.model()["last_used_at"]
        answer = running.client.get("/health?deep=demo")
        assert answer.status_code == 200
        deep = answer.json()["deep"]
        assert (deep["model"], deep["ok"], deep["reason"]) == ("demo", True, None)
        assert deep["seconds"] > 0
        assert running.model()["last_used_at"] == used_at, "a probe is no use"
        assert running.client.get("/health?deep=nobody").status_code == 404
        assert "deep" not in running.client.get("/health").json()

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


class TestNoHalfWay:
    """Whatever goes wrong between a worker's end and the next, supervision goes on."""

    def test_backoffs_without_a_pause(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway(
            config="[workers]\nrestart_limit = 0\nbackoff_first_s = 0\nbackoff_longest_s = 0\n"
        )
        running.load()
        whole = running.say(STORY, max_tokens=300, ignore_eos=True)
        stream = open_stream(running, STORY, max_tokens=300, ignore_eos=True)
        eventually(lambda: stream.text)
        os.kill(running.worker_pid(), signal.SIGKILL)
        assert stream.join(30).text == whole

    def test_no_descriptors_left(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway("--spare", "1", config="[workers]\nbackoff_first_s = 0.5\n")
        running.load()
        stream = open_stream(running, STORY, **LONG)
        eventually(lambda: stream.text)
        limits = psutil.Process(running.pid).rlimit(psutil.RLIMIT_NOFILE)
        used = psutil.Process(running.pid).num_fds()
        psutil.Process(running.pid).rlimit(psutil.RLIMIT_NOFILE, (used, limits[1]))
        os.kill(running.worker_pid(), signal.SIGKILL)
        time.sleep(2)
        psutil.Process(running.pid).rlimit(psutil.RLIMIT_NOFILE, limits)
        assert stream.join(60).done
        assert running.say("What is Bulkhead?")

    def test_the_sockets_folder_is_removed(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway()
        shutil.rmtree(running.state_dir / "run")
        assert running.say("What is Bulkhead?")

    def test_requests_that_cross_the_end_of_a_worker(
        self, start_gateway: Callable[..., Gateway]
    ) -> None:
        running = start_gateway("--spare", "1")
        for _ in range(4):
            running.load()
            os.kill(running.worker_pid(), signal.SIGTERM)
            for _ in range(4):
                assert running.say("What is Bulkhead?", max_tokens=2)

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
    def test_a_life_is_told(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway()
        running.load()
        stream = open_stream(running, STORY)
        eventually(lambda: stream.text)
        killed = running.worker_pid()
        os.kill(killed, signal.SIGKILL)
        stream.join()
        running.order("unload").raise_for_status()
        text = running.client.get("/admin/v1/events?follow=0").text
        events = [json.loads(each[6:]) for each in text.splitlines() if each.startswith("data: ")]
        kinds = [each["event"] for each in events if each["event"] != "state"]
        begin, end = ["admit", "start", "ready", "exit", "park", "admit", "start"], ["exit"]
        # A worker's ready and what it is sent at once are told in either order.
        assert kinds[:-1] in ([*begin, "resume", "ready"], [*begin, "ready", "resume"])
        assert kinds[-1:] == end
        states = [each["after"] for each in events if each["event"] == "state"]
        assert states[:4] == ["waiting", "starting", "loading", "ready"]
        assert states[-1] == "unloaded"
        first_exit = next(each for each in events if each["event"] == "exit")
        assert (first_exit["pid"], first_exit["signal"]) == (killed, "SIGKILL")
        park = next(each for each in events if each["event"] == "park")
        assert park["delivered_tokens"] > 0
        first = events[0]["id"]
        assert [each["id"] for each in events] == list(range(first, first + len(events)))
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

    def test_followers_see_what_comes(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway()
        with running.client.stream("GET", "/admin/v1/events") as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith(":")
            running.order("load", wait=False)
            assert next(each for each in lines if each.startswith("event: ")) == "event: state"

    def test_on_the_command_line(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway()
        running.load()
        shown = bulkhead("events", url=running.url)
        assert shown.returncode == 0
        assert "demo  ready  pid=" in shown.stdout
        as_json = bulkhead("events", "--json", "-n", "2", url=running.url)
        assert len([json.loads(each) for each in as_json.stdout.splitlines()]) == 2
        assert bulkhead("events", "--model", "nobody", url=running.url).stdout == ""
