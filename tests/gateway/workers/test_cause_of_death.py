"""Whether a model's workers die of one error again and again, and what that error is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.workers.cause_of_death import LastExit, RepeatedDeaths, error_of, remedy
from protocol.process import LEFT_ALONE

DAY_S = 24 * 3600.0
STACKS = ["Thread 0x00007f3a1c7fe700 (most recent call first):", '  File "a.py", line 7 in step']
OF_MEMORY = "Insufficient Memory ({}kIOGPUCommandBufferCallbackErrorOutOfMemory)."
ILLEGAL = "an illegal memory access was encountered"


def thrown(words: str) -> list[str]:
    """What C++ prints of an error that nobody catches, and Python after it."""
    return [
        "terminate called after throwing an instance of 'std::runtime_error'",
        f"  what():  {words}",
        "Fatal Python error: Aborted",
        "",
        *STACKS,
    ]


@pytest.mark.parametrize(
    ("code", "signal", "tail", "error"),
    [
        pytest.param(
            *(None, "SIGABRT", thrown(f"cudaStreamEndCapture(stream, &graph_) failed: {ILLEGAL}")),
            f"cudaStreamEndCapture failed: {ILLEGAL}",
            id="CUDA",
        ),
        pytest.param(
            *(
                None,
                "SIGABRT",
                thrown("cublasLtMatmul( a, b(0), 0x7f) failed with code: 13."),
            ),
            "cublasLtMatmul failed with code: ….",
            id="cuBLAS",
        ),
        pytest.param(
            *(1, None),
            [
                "Traceback (most recent call last):",
                "    raise RuntimeError('[METAL] Command buffer execution failed: here')",
                "RuntimeError: [METAL] Command buffer execution failed: "
                + OF_MEMORY.format("00000008:"),
                "RuntimeError: [METAL] Command buffer execution failed: Ignored (0000:kIO)",
            ],
            "[METAL] Command buffer execution failed: " + OF_MEMORY.format(""),
            id="the first error of Metal's",
        ),
        pytest.param(
            *(None, "SIGABRT"),
            [
                "libc++abi: terminating due to uncaught exception of type std::runtime_error: "
                "[metal::malloc] Attempting to allocate 137438953472 bytes, of 77309411328.",
                "Fatal Python error: Aborted",
            ],
            "[metal::malloc] Attempting to allocate … bytes, of ….",
            id="Metal's memory",
        ),
        pytest.param(
            *(None, None, ["[rank 1] RuntimeError: [METAL] Command buffer execution failed: X"]),
            "[METAL] Command buffer execution failed: X",
            id="of another rank, with an unknown status",
        ),
        pytest.param(
            *(None, "SIGSEGV", ["ValueError: old", "Fatal Python error: Segmentation fault", ""]),
            "SIGSEGV: Segmentation fault",
            id="a signal",
        ),
        pytest.param(None, "SIGBUS", [], "SIGBUS", id="a signal alone"),
        pytest.param(
            *(None, "SIGABRT", ["KeyError: old", *thrown("a list of 17 in /tmp")]),
            "SIGABRT: a list of … in /tmp",
            id="any other error of C++",
        ),
        pytest.param(
            *(
                1,
                None,
                ["KeyError: 1", "a.b.Error: no row req_0c9d2f1e6b7a4d58a3f1", "The end"],
            ),
            "no row …",
            id="Python's last error",
        ),
        pytest.param(1, None, ["so it ends", ""], "so it ends", id="the last line"),
        pytest.param(1, None, [], None, id="nothing"),
        pytest.param(None, None, ["KeyError: 1"], None, id="an unknown status"),
        pytest.param(0, None, ["KeyError: 1"], None, id="an end in order"),
        pytest.param(LEFT_ALONE, None, ["Rank 1 is gone"], None, id="another rank's end"),
        *(
            pytest.param(None, text, thrown(f"cudaX() failed: {ILLEGAL}"), None, id=text)
            for text in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
        ),
    ],
)
def test_the_words_of_the_error(
    code: int | None, signal: str | None, tail: list[str], error: str | None
) -> None:
    assert error_of(code, signal, tail) == error


def test_words_are_bounded() -> None:
    assert len(error_of(1, None, ["ValueError: " + "word " * 500]) or "") == 200


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (f"cudaEventSynchronize failed: {ILLEGAL}", "newer MLX"),
        ("(kIOGPUCommandBufferCallbackErrorPageFault)", "newer MLX"),
        (OF_MEMORY.format(""), "memory.budget"),
        ("cudaMallocAsync failed: out of memory", "memory.budget"),
        ("(kIOGPUCommandBufferCallbackErrorTimeout)", "fewer models"),
        ("(kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)", "`bulkhead logs a/b`"),
        ("SIGSEGV: Segmentation fault", "`bulkhead logs a/b`"),
    ],
)
def test_remedy_fits_error(error: str, helps: str) -> None:
    assert helps in remedy(error, "a/b")


def test_the_third_death_is_told_once_and_stays_for_a_day() -> None:
    deaths = RepeatedDeaths("m")
    told = [deaths.record("SIGSEGV", now, 1000.0 + now) for now in (0.0, 1.0, 2.0, 9.0)]
    assert [death is not None for death in told] == [False, False, True, False]
    assert told[2] is not None
    assert str(told[2]) == "3 of its workers have died of one error: SIGSEGV"
    (shown,) = deaths.repeated(9.0 + DAY_S - 1.0)
    assert (shown.error, shown.deaths, shown.last_at) == ("SIGSEGV", 4, 1009.0)
    assert shown.remedy == remedy("SIGSEGV", "m")
    assert deaths.repeated(9.0 + DAY_S) == []
    # It begins anew.
    assert deaths.record("SIGSEGV", 9.0 + DAY_S, 0.0) is None


def test_three_deaths_within_more_than_a_day_are_not_told() -> None:
    deaths = RepeatedDeaths("m")
    assert not any(deaths.record("SIGSEGV", now, 0.0) for now in (0.0, 1.0, DAY_S))
    assert deaths.repeated(DAY_S) == []
    assert deaths.record("SIGSEGV", DAY_S + 0.5, 0.0) is not None


def test_a_fault_is_one_kind_whichever_call_reports_it() -> None:
    deaths = RepeatedDeaths("m")
    for now, call in enumerate(("cudaStreamEndCapture", "cudaEventSynchronize", "cudaFree")):
        told = deaths.record(f"{call} failed: {ILLEGAL}", float(now), 0.0)
    assert told is not None
    assert told.error == f"cudaFree failed: {ILLEGAL}"


def test_other_files_and_orders_clear_the_record() -> None:
    deaths = RepeatedDeaths("m")
    deaths.loaded("f")
    for now in range(3):
        deaths.record("SIGSEGV", float(now), 0.0)
        # It is to be loaded again.
        deaths.loaded(None)
        deaths.loaded("f")
    assert len(deaths.repeated(3.0)) == 1
    deaths.loaded("g")
    assert deaths.repeated(3.0) == []
    for now in range(3):
        deaths.record("SIGSEGV", float(now), 0.0)
    deaths.forget()
    assert deaths.repeated(3.0) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, DAY_S)), max_size=40))
def test_a_kind_is_told_when_three_deaths_are_within_a_day(
    steps: list[tuple[str, float]],
) -> None:
    deaths, now = RepeatedDeaths("m"), 0.0
    times: dict[str, list[float]] = {}
    told: set[str] = set()
    for error, passed_s in steps:
        now += passed_s
        for name in [text for text, moment in times.items() if now - moment[-1] >= DAY_S]:
            del times[name]
            told.discard(name)
        times.setdefault(error, []).append(now)
        due = len(times[error]) >= 3 and now - times[error][-3] < DAY_S and error not in told
        assert (deaths.record(error, now, now) is not None) == due
        told |= {error} if due else set()
        assert {death.error for death in deaths.repeated(now)} == told


def test_the_kinds_are_bounded() -> None:
    deaths = RepeatedDeaths("m")
    for now in range(3):
        deaths.record("first", float(now), 0.0)
    for number in range(7):
        deaths.record(f"other {number}", 3.0, 0.0)
    assert len(deaths.repeated(3.0)) == 1
    deaths.record("one more", 3.0, 0.0)
    assert deaths.repeated(3.0) == []


def test_how_a_worker_ended() -> None:
    code = LastExit(at=0.0, code=3, signal=None, reason="", log_tail=[])
    assert code.how == "with code 3"
    assert msgspec.structs.replace(code, code=None).how == "with an unknown status"
    assert msgspec.structs.replace(code, code=None, signal="SIGKILL").how == "by SIGKILL"
