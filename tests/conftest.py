from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.support.folders import short_folder
from tests.support.gateway import Gateway
from worker.transformers import cache_import_structure

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell has it for what a script leaves in the background. Programs that the tests start
    # would inherit that, but not a handler.
    signal.signal(signal.SIGINT, lambda _signal, _frame: None)

# Of the processes that the tests start; this one has its path already.
_ABSENT = str(Path(__file__).parent / "support" / "absent")
os.environ["PYTHONPATH"] = os.pathsep.join([_ABSENT, *filter(None, [os.environ.get("PYTHONPATH")])])

# Thousands of modules and tests are made now, and stay: to search them for garbage again and again
# would take a fifth of the time.
gc.disable()

# Some tests run engines in their own process, and import what workers do.
if os.environ.get("BULKHEAD_DEVICE") == "cpu":
    import mlx.core

    mlx.core.set_default_device(mlx.core.cpu)
cache_import_structure()

# Those that start processes, the slowest first. A file stays with one process of a run: if the long
# ones came last, one process would end long before the other.
SLOWEST = ("docs", "chaos", "e2e", "doctor", "worker", "service", "cli")

# How long an example takes depends on what else the machine does.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# Whoever changes something has the examples of whoever changed something else before, and few of
# them; what nobody has seen yet is looked for by `make test-all`.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=30)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("hypothesis_profile", None) == "repeatable":
        # Hypothesis draws from the constants of the modules that are imported, too. So examples
        # would differ with the tests that ran before, and with each change of a number.
        providers._get_local_constants = lambda: providers._local_constants  # type: ignore[attr-defined]


def pytest_sessionstart(session: pytest.Session) -> None:
    """What is imported is compiled and kept once: workers that do it themselves take more memory
    than others, which tests compare, and several processes of a run would all do it.
    """
    quick = session.config.pluginmanager.has_plugin("tests.support.quick")
    if session.config.getoption("numprocesses", None) and not quick:
        first = Gateway()
        try:
            first.load()
        finally:
            first.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    for item in items:
        if item.get_closest_marker("outside_our_hands"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return SLOWEST.index(folder) if folder in SLOWEST else len(SLOWEST)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for sockets, whose paths are bounded: those of `tmp_path` may be longer."""
    with short_folder() as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    """A gateway with the demo model, shared by all tests that end, unload and count nothing."""
    running = Gateway()
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture(scope="module")
def own_gateway() -> Iterator[Gateway]:
    """The same for the tests of one module."""
    running = Gateway()
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture
def start_gateway() -> Iterator[Callable[..., Gateway]]:
    """Start gateways; each is stopped after the test, with exit status 0."""
    started: list[Gateway] = []

    def start(*arguments: str, **options: object) -> Gateway:
        started.append(Gateway(*arguments, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for running in started:
        assert running.stop() == 0, running.log
