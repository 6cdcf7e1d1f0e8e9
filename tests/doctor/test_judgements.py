"""Evidence in, findings out: what can't be planted on the machine that runs the tests."""

from __future__ import annotations

import email
import sys
import threading
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from gateway.config.settings import Flags, MemorySettings
from gateway.doctor.errands import ErrandOutcome, run_errand
from gateway.doctor.files import judge_disk
from gateway.doctor.finding import Check, Finding, Severity, error, findings, ok, warning, worst
from gateway.doctor.gateway import (
    Leftover,
    judge_caches,
    judge_deaths,
    judge_leftovers,
    judge_outputs,
    judge_workers,
)
from gateway.doctor.installation import Installation
from gateway.doctor.machine import (
    judge_device,
    judge_memory,
    judge_packages,
    judge_python,
    judge_swap,
    judge_wired_limit,
    look_at_packages,
    look_at_python,
)
from gateway.doctor.models import judge_model, read_examined
from gateway.doctor.service import ServiceFacts, judge_service
from gateway.doctor.throughput import SpeedComparison, judge_throughput
from gateway.memory.fitting import budget_of
from gateway.service.definition import Installed
from gateway.system.memory import DeviceMemory, HostMemory
from gateway.workers.cache_proof import CacheProofState
from gateway.workers.cause_of_death import RepeatedDeath
from protocol.errands import Environment, Examine, Examined

GB = 10**9
ENVIRONMENT = msgspec.json.encode(Environment("3.11", "0.32", "0.32"))


def _severities(found: Iterable[Finding]) -> list[Severity]:
    found = list(found)
    assert all((finding.remedy is None) == (finding.severity is Severity.OK) for finding in found)
    return [finding.severity for finding in found]


def test_the_worst_of_all() -> None:
    assert worst([]) is Severity.OK
    assert worst([ok("a", ""), warning("a", "", "")]) is Severity.WARNING
    assert worst([error("a", "", ""), warning("a", "", ""), ok("a", "")]) is Severity.ERROR


def test_deaths_of_one_error_have_its_words_and_what_helps() -> None:
    death = RepeatedDeath("out of memory", 3, 0.0, "Lower it.")
    (finding,) = judge_deaths({"m": (death,), "n": ()}, gateway_runs=True)
    assert (finding.check, finding.severity, finding.subject) == ("deaths", Severity.WARNING, "m")
    assert finding.evidence == "3 of its workers have died of one error: out of memory."
    assert finding.remedy == "Lower it."
    assert _severities(judge_deaths({"n": ()}, gateway_runs=True)) == [Severity.OK]
    assert _severities(judge_deaths({}, gateway_runs=False)) == [Severity.OK]


def test_wrong_numbers_are_told_of_each_model() -> None:
    counts = {"m": 1, "n": 3, "o": 0}
    once, thrice = judge_outputs(counts, ["n"], gateway_runs=True)
    assert (once.severity, once.subject) == (Severity.WARNING, "m")
    assert once.evidence == "The numbers of its answers were wrong once."
    assert (
        thrice.evidence == "The numbers of its answers were wrong 3 times. Its worker is plain now."
    )
    assert thrice.remedy is not None
    assert "`bulkhead check n`" in thrice.remedy
    assert _severities(judge_outputs({"o": 0}, [], gateway_runs=True)) == [Severity.OK]
    assert _severities(judge_outputs({}, [], gateway_runs=False)) == [Severity.OK]


class TestExamination:
    @pytest.fixture
    def installation(self, tmp_path: Path) -> Installation:
        return Installation(Flags(state_dir=tmp_path), {})

    def test_a_check_that_fails_itself_is_a_finding(self, installation: Installation) -> None:
        def look(_: Installation) -> Iterator[Finding]:
            yield ok("moon", "full.")
            raise PermissionError("not\nfor you")

        first, second = findings(Check("moon", look), installation)
        assert first.severity is Severity.OK
        assert (second.check, second.severity) == ("moon", Severity.WARNING)
        assert second.evidence == "The check failed: PermissionError: not for you."

    def test_a_check_that_hangs_is_a_finding(self, installation: Installation) -> None:
        over = threading.Event()

        def look(_: Installation) -> Iterator[Finding]:
            over.wait(60)
            yield ok("moon", "late.")

        (found,) = findings(Check("moon", look, deadline_s=0.1), installation)
        over.set()
        assert found.evidence == "The check failed: no answer within 0.1 s."


class TestSoftware:
    def test_python(self) -> None:
        judged = [
            judge_python("3.11.9", ">=3.11,<3.15", "darwin", "arm64"),
            judge_python("3.11.9", ">=3.11,<3.15", "linux", "x86_64"),
            judge_python("3.14.0rc1", ">=3.11,<3.15", "linux", "x86_64"),
            judge_python("3.10.2", ">=3.11,<3.15", "linux", "x86_64"),
            judge_python("3.11.9", ">=3.11,<3.15", "darwin", "x86_64"),
        ]
        assert _severities(judged) == ["ok", "ok", "ok", "error", "error"]
        assert "MLX needs arm64" in judged[-1].evidence

    def test_metadata_that_want_no_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        damaged = email.message_from_string("Metadata-Version: 2.4\nName: mlx-bulkhead\n")
        monkeypatch.setattr(metadata, "metadata", lambda _name: damaged)
        (found,) = look_at_python(None)  # type: ignore[arg-type]
        assert found.severity is Severity.OK

    def test_a_package_whose_metadata_are_damaged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken-1.0.dist-info").mkdir()
        (tmp_path / "broken-1.0.dist-info" / "METADATA").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path))
        assert _severities(look_at_packages(None)) == ["ok"]  # type: ignore[arg-type]

    def test_packages(self) -> None:
        wanted = ["pyzmq>=27,<28", "MLX[cpu]>=0.32; extra == 'cpu'"]
        (found,) = judge_packages(wanted, {"mlx-bulkhead": "1", "pyzmq": "27.1"})
        assert found == ok("packages", "bulkhead 1, pyzmq 27.1")
        (found,) = judge_packages(wanted, {"pyzmq": "26.0"})
        assert found.evidence == "pyzmq is 26.0, and Bulkhead needs <28,>=27."
        (found,) = judge_packages(wanted, {})
        assert found.evidence == "pyzmq is missing."
        spelled = judge_packages(["tree_sitter.toml"], {"tree-sitter-toml": "1"})
        assert _severities(spelled) == ["ok"]
        assert _severities(judge_packages(None, {})) == ["error"]

    def test_two_back_ends(self) -> None:
        (found,) = judge_packages([], {"mlx-cpu": "1", "mlx-cuda-13": "1"})
        assert found.evidence.startswith("mlx-cpu and mlx-cuda-13 are both installed")


class TestMachine:
    def test_device(self) -> None:
        info = {"device_name": "Apple M2 Ultra", "max_recommended_working_set_size": 150 * GB}
        assert judge_device(info).evidence == (
            "Apple M2 Ultra; the recommended working set is 150 GB."
        )
        card = {"device_name": "NVIDIA H100", "total_memory": 85 * GB}
        assert judge_device(card).evidence == "NVIDIA H100; it has 85.0 GB of its own."
        assert "computes in the machine's memory" in judge_device({"device_name": "x"}).evidence

    def test_wired_limit(self) -> None:
        judged = [judge_wired_limit(limit, 64 * GB) for limit in (None, 0, 50_000, 60_000)]
        assert _severities(judged) == ["ok", "ok", "ok", "warning"]
        assert "leaves 1.1 GB to all other programs" in judged[-1].evidence

    def test_memory(self) -> None:
        def judge(
            pressure: str | None,
            budget_bytes: int = 10 * GB,
            stranded_bytes: int = 0,
            device: DeviceMemory | None = None,
        ) -> list[Severity]:
            host = HostMemory(64 * GB, 40 * GB, None, pressure)  # type: ignore[arg-type]
            return _severities(judge_memory(host, budget_bytes, stranded_bytes, device))

        assert judge("normal") == judge(None) == ["ok"]
        assert judge("warn") == ["warning"]
        assert judge("critical") == ["error"]
        assert judge("normal", budget_bytes=65 * GB) == ["error"]
        card = DeviceMemory(80 * GB, is_card=True)
        assert judge("normal", budget_bytes=65 * GB, device=card) == ["ok"]
        assert judge("normal", budget_bytes=81 * GB, device=card) == ["error"]
        assert judge("normal", budget_bytes=0) == ["error"]
        assert judge("normal", stranded_bytes=GB) == ["warning"]

    def test_swap(self) -> None:
        def judge(used_gb: int, total_gb: int, available_gb: int, *, grows: bool) -> Severity:
            host = HostMemory(64 * GB, available_gb * GB, None, None)
            return judge_swap(used_gb * GB, total_gb * GB, host, grows=grows).severity

        assert judge(0, 0, 1, grows=False) == judge(0, 0, 1, grows=True) == "ok"
        assert judge(8, 8, 40, grows=False) == "ok", "nobody misses what is there"
        assert judge(7, 8, 2, grows=False) == "ok"
        assert judge(8, 8, 2, grows=False) == "warning"
        # macOS has always about as much as is used.
        assert judge(8, 9, 2, grows=True) == "ok"
        assert judge(20, 21, 2, grows=True) == "warning"

    def test_the_budget(self) -> None:
        auto = MemorySettings(headroom="2GB")
        assert budget_of(auto, 64 * GB, DeviceMemory(48 * GB)) == 46 * GB
        assert budget_of(auto, 64 * GB, None) == 62 * GB
        assert budget_of(auto, GB, None) == 0
        half = MemorySettings(budget="50%")
        assert budget_of(half, 64 * GB, DeviceMemory(48 * GB)) == 32 * GB

    def test_disk(self) -> None:
        judged = [judge_disk(Path("/"), size) for size in (2 * GB, GB // 2, GB // 1000)]
        assert _severities(judged) == ["ok", "warning", "error"]


def test_workers_of_different_priorities() -> None:
    (found,) = judge_workers([], {7: 0, 8: 0})
    assert found.severity == "ok"
    (found,) = judge_workers([], {7: 0, 8: 10})
    assert found.severity == "warning"
    assert "0 (worker 7), 10 (worker 8)" in found.evidence


def test_leftovers_beside_a_gateway_that_runs() -> None:
    left = [Leftover(7, "tiny", 3 * GB), Leftover(8, "spare", None)]
    first, second = judge_leftovers(left, gateway_runs=True)
    assert first.evidence.startswith("Worker 7 (tiny) of a gateway that is gone")
    assert first.evidence.endswith("still runs and holds 3.0 GB.")
    assert "holds" not in second.evidence
    assert "next start" not in str(first.remedy)
    first, _ = judge_leftovers(left, gateway_runs=False)
    assert "next start" in str(first.remedy)
    # SIGTERM waits until a stopped process goes on.
    (found,) = judge_leftovers([Leftover(9, "tiny", None, stopped=True)], gateway_runs=False)
    assert "`kill -CONT 9`" in str(found.remedy)


class TestService:
    FACTS = ServiceFacts(
        path="/x.service",
        installed=Installed("/python", None, Path("/state"), stop_s=120),
        visible=True,
        loaded=True,
        pid=7,
        mistake=None,
        needed_stop_s=100,
    )

    def _judge(self, **changes: object) -> list[Finding]:
        return list(judge_service(msgspec.structs.replace(self.FACTS, **changes), "/python"))

    def test_it_runs(self) -> None:
        assert self._judge() == [ok("service", "/x.service runs (pid 7).")]

    def test_it_does_not(self) -> None:
        assert _severities(self._judge(pid=None)) == ["error"]
        assert _severities(self._judge(pid=None, loaded=False)) == ["warning"]

    def test_another_account_may_not_see_that(self) -> None:
        (found,) = self._judge(pid=None, visible=False)
        assert found.severity is Severity.OK
        assert "another account" in found.evidence

    def test_later_faults_are_warnings(self) -> None:
        (found,) = self._judge(mistake="x.toml:1: no")
        assert found.evidence == "/x.service will not start again: x.toml:1: no"
        (found,) = self._judge(needed_stop_s=200)
        assert "gets 120 s and may take 200 s" in found.evidence
        other = Installed("/other", None, Path("/state"), stop_s=120)
        (found,) = self._judge(installed=other)
        assert "another environment, /other" in found.evidence


class TestModels:
    def test_the_model_that_a_process_did_not_survive(self) -> None:
        lines = (ENVIRONMENT, msgspec.json.encode(Examined("/a", chats=True)))
        died = ErrandOutcome(lines, "the process died by SIGSEGV")
        found = read_examined(["a", "b"], died, None)
        assert found["a"] == Examined("/a", chats=True)
        assert found["b"] == "nothing more is known about it: the process died by SIGSEGV"
        (judged,) = judge_model("b", found["b"], None)
        assert (judged.severity, judged.subject) == (Severity.ERROR, "b")

    def test_nonsense(self) -> None:
        assert "nonsense" in str(read_examined(["a"], ErrandOutcome((b"{",), None), None)["a"])

    def test_a_model_that_cannot_chat_is_well(self) -> None:
        (found,) = judge_model("a", Examined("/a"), None)
        assert found.severity is Severity.OK
        assert "can't chat" in found.evidence


class TestErrands:
    def _interpreter(self, folder: Path, does: str) -> str:
        path = folder / "python"
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(0o755)
        return str(path)

    def test_hanging_errand_is_ended_and_its_lines_stay(self, tmp_path: Path) -> None:
        python = self._interpreter(tmp_path, "echo '{}'; exec sleep 100")
        outcome = run_errand("examine", Examine(()), python, 1.0)
        assert outcome == ErrandOutcome((b"{}",), "it took longer than 1 s")

    def test_dead_errand_names_its_signal(self, tmp_path: Path) -> None:
        python = self._interpreter(tmp_path, "kill -SEGV $$")
        outcome = run_errand("examine", Examine(()), python, 30.0)
        assert outcome == ErrandOutcome((), "the process died by SIGSEGV")

    def test_failed_errand_has_its_last_line(self, tmp_path: Path) -> None:
        python = self._interpreter(tmp_path, "echo 'Error: no.' >&2; exit 3")
        assert run_errand("examine", Examine(()), python, 30.0).failure == "Error: no"

    def test_no_interpreter(self) -> None:
        failure = run_errand("examine", Examine(()), "/nowhere", 30.0).failure
        assert failure == "/nowhere can't be run: No such file or directory"

    def test_prints_of_libraries_are_no_answer(self, tmp_path: Path) -> None:
        python = self._interpreter(tmp_path, f'exec {sys.executable} -X importtime "$@"')
        outcome = run_errand("examine", Examine(()), python, 60.0)
        assert (len(outcome.lines), outcome.failure) == (1, None)


class TestThroughput:
    def test_the_ratio(self) -> None:
        healthy = judge_throughput(
            SpeedComparison("demo", 80, 87, beside=0, busy=0.1), ("gui/501",)
        )
        assert healthy == ok(
            "throughput",
            "demo makes 80 tokens/s in the gateway (as a service in gui/501) and 87 in this shell, "
            "a ratio of 0.92.",
        )
        slow = SpeedComparison("demo", 11, 87, beside=0, busy=0.1)
        throttled = judge_throughput(slow, ("gui/501",))
        assert throttled.severity is Severity.WARNING
        assert "ProcessType Interactive" in str(throttled.remedy)
        assert "--system" in str(throttled.remedy)
        assert "--system" not in str(judge_throughput(slow, ("system",)).remedy)
        by_hand = judge_throughput(slow, ())
        assert "(started by hand)" in by_hand.evidence
        assert "ProcessType" not in str(by_hand.remedy)

    def test_a_throttled_prompt(self) -> None:
        """Such an agent was seen that made tokens as quickly as a shell."""
        read = SpeedComparison("demo", 500, 1900, beside=0, busy=0.1, prompt_tokens=8000)
        found = judge_throughput(read, ("gui/501",))
        assert found.severity is Severity.WARNING
        assert found.evidence.startswith("demo reads 8,000 tokens at 500 tokens/s in the gateway")

    def test_busy_machine_proves_little(self) -> None:
        for beside, busy in ((3, 0.0), (0, 0.9)):
            found = judge_throughput(SpeedComparison("demo", 11, 87, beside, busy), ("system",))
            assert found.severity is Severity.WARNING
            assert "That proves little" in found.evidence
            well = judge_throughput(SpeedComparison("demo", 80, 87, beside, busy), ("system",))
            assert well.severity is Severity.OK


def test_wrong_cached_prompts_are_told_of_each_model() -> None:
    wrong = CacheProofState(quarantined_blocks=3, failures=2, off="since", last_at=0.0)
    right = CacheProofState(proven_tokens=100, last_at=0.0)
    (finding,) = judge_caches({"m": wrong, "n": right, "o": None}, gateway_runs=True)
    assert (finding.severity, finding.subject) == (Severity.WARNING, "m")
    assert "3 of its cached blocks were wrong" in finding.evidence
    assert "without a prompt cache" in finding.evidence
    assert _severities(judge_caches({"n": right}, gateway_runs=True)) == [Severity.OK]
