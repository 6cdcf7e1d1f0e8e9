"""`bulkhead upgrade` says what it waits for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cli.terminal import bulkhead
from tests.support.commands import serving, table
from tests.support.gateway import eventually


@pytest.mark.slow
def test_a_model_that_is_being_loaded_is_waited_for() -> None:
    config = table("slow", "--slow-start", "4", memory="100MB")
    with serving(config) as gateway, ThreadPoolExecutor(1) as pool:
        load = pool.submit(gateway.load, "slow")
        eventually(lambda: gateway.model("slow")["state"] in ("starting", "loading"))
        done = bulkhead("upgrade", url=gateway.url)
        assert done.returncode == 0, done.stderr
        assert "upgrade: waits for slow: " in done.stderr
        assert done.stdout.startswith("version ")
        assert load.result()["state"] == "ready"
