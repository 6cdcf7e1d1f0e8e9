"""Runs the tests of each policy against every wrong version of it.

A version is caught if a test fails. Each is tried in a forked process, which has all but the policy
itself loaded. The library for this leaves properties out, and half of the account is such.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import random
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import click
import hypothesis
import hypothesis.stateful
import hypothesis.strategies
import pytest

from tests.mutants.changes import mutants

ROOT: Final = Path(__file__).parents[2]
_ACCOUNT: Final = (
    "tests/gateway/memory/test_admission.py test_turn.py test_loans.py test_wants.py "
    "test_lending.py test_ledger.py test_reclaim.py test_admission_bounds.py"
)
# Policies, and the files that test them.
POLICIES: Final = {
    "gateway/memory/admission.py": _ACCOUNT,
    "gateway/memory/turn.py": _ACCOUNT,
    "gateway/memory/reclaim.py": _ACCOUNT,
    "gateway/memory/loans.py": _ACCOUNT,
    "gateway/memory/wants.py": _ACCOUNT,
    "gateway/memory/orders.py": _ACCOUNT,
    "gateway/memory/lending.py": _ACCOUNT,
    "gateway/memory/ledger.py": _ACCOUNT,
    "gateway/memory/stranded/[!_]*.py": (
        "tests/gateway/memory/stranded/test_account.py test_policy.py test_habits.py test_record.py"
    ),
    "gateway/dispatch/queue.py": "tests/gateway/dispatch/test_queue.py",
    "worker/engines/room.py": "tests/worker/test_room.py",
    "worker/engines/pace.py": "tests/worker/test_pace.py",
}
LEAST_SHARE: Final = 0.9
# Far more than any of these tests takes: whoever needs this never ends.
_CPU_S: Final = 20


def _tests(names: str) -> list[str]:
    first, *others = names.split()
    return [first, *(str(Path(first).parent / each) for each in others)]


def _passes(path: Path, tree: ast.Module, tests: list[str]) -> bool:
    """Whether the tests pass with this version of a module."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        _install(path, tree)
        options = ["-x", "-q", "--noconftest", "-p", "no:cacheprovider", "--tb=no"]
        options += ["-c", os.devnull, "--rootdir", str(ROOT)]
        status = int(pytest.main([*options, *tests]))
    finally:
        os._exit(min(status, 1))


def _install(path: Path, tree: ast.Module) -> None:
    name = ".".join(path.with_suffix("").parts)
    package, _, attribute = name.rpartition(".")
    parent = importlib.import_module(package)
    if name in sys.modules:
        raise RuntimeError(f"{name} is loaded already, so others have it as it was")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(tree, str(path), "exec"), module.__dict__)
    setattr(parent, attribute, module)


def _selected(only: tuple[str, ...]) -> Iterator[tuple[Path, list[str]]]:
    for pattern, names in POLICIES.items():
        for each in sorted(ROOT.glob(pattern)):
            path = each.relative_to(ROOT)
            if not only or str(path) in only:
                yield path, _tests(names)


@click.command()
@click.argument("only", nargs=-1)
@click.option("--jobs", default=os.cpu_count() or 1, help="Versions that are tried at once.")
@click.option("--most", type=int, help="Versions of each policy: a draw, always the same.")
def main(only: tuple[str, ...], jobs: int, most: int | None) -> None:
    """Try all policies, or ONLY these paths of them."""
    os.chdir(ROOT)
    hypothesis.settings.register_profile(
        "mutants",
        deadline=None,
        derandomize=True,
        max_examples=40,
        database=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    )
    hypothesis.settings.load_profile("mutants")
    # Those of other packages take longer to load than these tests to run.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    table = []
    for path, tests in _selected(only):
        source = (ROOT / path).read_text("utf-8")
        if not _passes(path, ast.parse(source), tests):
            raise click.ClickException(f"the tests of {path} fail as it is")
        versions = every = list(mutants(source))
        if most is not None and len(every) > most:
            drawn = random.Random(str(path)).sample(range(len(every)), most)
            versions = [every[each] for each in sorted(drawn)]
        with ThreadPoolExecutor(jobs) as pool:
            tried = [pool.submit(_passes, path, each.tree, tests) for each in versions]
            passed = [each.result() for each in tried]
        caught = passed.count(False)
        share = caught / len(versions)
        figures = f"{caught:6}{len(versions):6}{share:8.2f}{len(every):12}"
        table.append((share, f"{path!s:42}{figures}"))
        click.echo(table[-1][1])
        for each, survived in zip(versions, passed, strict=True):
            if survived:
                click.echo(f"  {path}:{each.line}: {' '.join(each.change.split())}")
    click.echo(f"\n{'policy':42}{'caught':>6}{'of':>6}{'share':>8}{'drawn from':>12}")
    for _, line in table:
        click.echo(line)
    short = [line.split()[0] for share, line in table if share < LEAST_SHARE]
    if short:
        raise click.ClickException(f"less than {LEAST_SHARE} are caught of {', '.join(short)}")


if __name__ == "__main__":
    main()
