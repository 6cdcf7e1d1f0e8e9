"""A real gateway process for tests, and what they ask of it."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from gateway.system.log_lines import readable
from tests.support.folders import short_folder

# Deadlines for a busy machine: only a defect lets one pass.
SOON_S = 20.0
STOP_S = 120.0
# For what needs a new process of ours. Beside two programs that compute, its imports and its load
# take 15 s, and some conditions need several processes, one after the other.
START_S = 120.0
BULKHEAD = str(Path(sys.executable).with_name("bulkhead"))


class Gateway:
    """`bulkhead serve` on a free port, in a state folder of its own.

    It has no spare worker unless `arguments` have `--spare`: the spare's imports take two seconds,
    and the tests start a hundred gateways.
    """

    def __init__(
        self,
        *arguments: str,
        models: tuple[str, ...] = ("demo",),
        environment: dict[str, str] | None = None,
        config: str | None = None,
        prefix: tuple[str, ...] = (),
        prepare: Callable[[Path], None] | None = None,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        """`prefix` is a command that replaces itself by the gateway, as `setpriv` does. `prepare`
        is called with the state folder before the start. `verify` says how the gateway's
        certificate is checked.
        """
        # Short, since the paths of sockets are bounded; pytest's folders are not.
        self._folder = short_folder()
        self.state_dir = Path(self._folder.name) / "state"
        if prepare is not None:
            self.state_dir.mkdir(0o700)
            prepare(self.state_dir)
        command = [BULKHEAD, "serve", "--port", "0"]
        command += ["--state-dir", str(self.state_dir)]
        self.config_path = Path(self._folder.name) / "config.toml"
        if config is not None:
            self.config_path.write_text(config, "utf-8")
            command += ["--config", str(self.config_path)]
        for model in models:
            command += ["--model", model]
        self.process = subprocess.Popen(
            [*prefix, *command, *([] if "--spare" in arguments else ["--spare", "0"]), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # The gateway would find and serve the models in the cache of whoever runs the tests.
            env={
                **os.environ,
                "HF_HUB_CACHE": str(Path(self._folder.name) / "cache"),
                **(environment or {}),
            },
        )
        self._log: list[str] = []
        threading.Thread(target=self._collect_log, daemon=True).start()
        self.url = self._read_url()
        self.client = httpx.Client(base_url=self.url, timeout=120.0, verify=verify)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """The log in the form for people."""
        return "".join(f"{readable(line)}\n" for line in list(self._log))

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.get("/admin/v1/status").raise_for_status().json()
        return answer

    def model(self, model_id: str = "demo") -> dict[str, Any]:
        return next(model for model in self.status()["models"] if model["id"] == model_id)

    def worker_pid(self, model_id: str = "demo") -> int:
        pid: int = self.model(model_id)["worker"]["pid"]
        return pid

    def load(self, model_id: str = "demo") -> dict[str, Any]:
        return self.order("load", model_id).raise_for_status().json()

    def order(self, verb: str, model_id: str = "demo", **options: bool) -> httpx.Response:
        return self.client.post(f"/admin/v1/models/{model_id}/{verb}", json=options)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """All events that the gateway keeps, or those of one kind."""
        text = self.client.get("/admin/v1/events?follow=0&recent=1000").text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        return [event for event in events if kind in (None, event["event"])]

    def chat(
        self,
        text: str,
        model_id: str = "demo",
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> httpx.Response:
        body = chat_body(text, model_id, **fields)
        return self.client.post("/v1/chat/completions", json=body, headers=headers)

    def say(self, text: str, model_id: str = "demo", **fields: Any) -> str:
        """Say this to the model, and return the text of its whole answer."""
        answer = self.chat(text, model_id, **fields).raise_for_status().json()
        content: str = answer["choices"][0]["message"]["content"]
        return content

    def stop(self) -> int:
        """End the gateway as launchd would. Returns its exit status."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._folder.cleanup()
        return status

    def _read_url(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"https?://\S+", line)
        assert found is not None, f"no address: {line!r}, log: {self.log}"
        return found[0]

    def _collect_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._log.append(line.rstrip("\n"))


def chat_body(text: str, model_id: str = "demo", **fields: Any) -> dict[str, Any]:
    return {"model": model_id, "messages": [{"role": "user", "content": text}], **fields}


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def eventually(
    condition: Callable[[], Any], within_s: float = SOON_S, every_s: float = 0.05
) -> Any:
    """Call the condition until it returns something true, and return that. A caller that passes
    `within_s` says why it waits longer than usual.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(every_s)
    raise AssertionError(f"not within {within_s} s")
