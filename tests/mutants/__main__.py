"""Runs the tests of each policy against every wrong version of it.

A version is caught if a test fails. The library for this leaves properties out, and half of the
account is such.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import hypothesis

from tests.mutants.changes import mutants
from tests.mutants.trial import ROOT, Trial

_ACCOUNT: Final = (
    "tests/gateway/memory/test_admission.py test_admission_round.py test_loans.py test_ledger.py "
    "test_idle_eviction.py test_reclaim.py test_admission_bounds.py ../config/test_groups.py"
)
# Policies, and the files that test them.
POLICIES: Final = {
    "gateway/memory/admission.py": _ACCOUNT,
    "gateway/memory/admission_round.py": _ACCOUNT,
    "gateway/memory/reclaim.py": _ACCOUNT,
    "gateway/memory/loans.py": _ACCOUNT,
    "gateway/memory/ledger.py": f"{_ACCOUNT} ../models/test_model_memory.py",
    "gateway/memory/allocation.py": _ACCOUNT,
    "gateway/config/model.py": (
        f"{_ACCOUNT} ../config/test_group_rules.py ../config/test_config_options.py"
    ),
    "gateway/memory/leak_check.py": "tests/gateway/memory/test_leak_check.py",
    "gateway/requests/queue.py": "tests/gateway/requests/test_queue.py",
    "gateway/workers/rank_group.py": "tests/gateway/workers/hosts/test_fate.py test_bereavement.py",
    "gateway/workers/lifeline.py": (
        "tests/gateway/workers/hosts/test_lifeline.py test_rank_worlds.py"
    ),
    "gateway/workers/deaths.py": "tests/gateway/workers/test_deaths.py",
    "gateway/workers/verdicts.py": "tests/gateway/workers/test_verdicts.py",
    "gateway/mailbox/store.py": "tests/gateway/mailbox/test_store.py test_archive.py",
    "gateway/models/recovery.py": "tests/gateway/models/test_recovery.py test_load.py",
    "gateway/requests/traffic.py": (
        "tests/gateway/requests/test_traffic.py test_traffic_course.py test_passages.py "
        "test_vectors.py ../models/test_recovery.py ../models/test_load.py"
    ),
    "gateway/library/hub.py": "tests/gateway/library/test_hub.py",
    "gateway/access/limits.py": (
        "tests/gateway/access/test_limits.py test_accounts.py ../http/test_auth.py"
    ),
    "gateway/access/keys.py": "tests/gateway/access/test_keys.py ../http/test_auth.py",
    "worker/engines/room.py": "tests/worker/engines/test_room.py",
    "worker/engines/pace.py": "tests/worker/engines/test_pace.py",
    "worker/prompt_cache/snapshots.py": "tests/worker/prompt_cache/test_snapshots.py",
    "worker/guesses/lookup.py": "tests/worker/guesses/test_lookup.py",
    "worker/guesses/costs.py": "tests/worker/guesses/test_costs.py",
    "worker/guesses/guesser.py": "tests/worker/guesses/test_guesser.py",
}
LEAST_SHARE: Final = 0.9


def _tests(names: str) -> list[str]:
    first, *others = names.split()
    return [first, *(str(Path(first).parent / other) for other in others)]


def _selected(only: tuple[str, ...]) -> Iterator[tuple[Path, list[str]]]:
    for path, names in POLICIES.items():
        if not only or path in only:
            missing = [test for test in (path, *_tests(names)) if not (ROOT / test).is_file()]
            if missing:
                raise click.ClickException(f"these have moved: {', '.join(missing)}")
            yield Path(path), _tests(names)


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
        versions = every = list(mutants((ROOT / path).read_text("utf-8")))
        if most is not None and len(every) > most:
            drawn = random.Random(str(path)).sample(range(len(every)), most)
            versions = [every[index] for index in sorted(drawn)]
        trial = Trial(path, versions, tests, jobs)
        trial.run()
        if trial.survived is None:
            raise click.ClickException(f"the tests of {path} fail as it is")
        caught = len(versions) - len(trial.survived)
        share = caught / len(versions)
        figures = f"{caught:6}{len(versions):6}{share:8.2f}{len(every):12}"
        table.append((share, f"{path!s:42}{figures}"))
        click.echo(table[-1][1])
        for mutant in trial.survived:
            click.echo(f"  {path}:{mutant.line}: {' '.join(mutant.change.split())}")
    click.echo(f"\n{'policy':42}{'caught':>6}{'of':>6}{'share':>8}{'drawn from':>12}")
    for _, line in table:
        click.echo(line)
    short = [line.split()[0] for share, line in table if share < LEAST_SHARE]
    if short:
        raise click.ClickException(f"less than {LEAST_SHARE} are caught of {', '.join(short)}")


if __name__ == "__main__":
    main()
