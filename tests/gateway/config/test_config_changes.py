"""What a reload would touch."""

from __future__ import annotations

import msgspec
import pytest

from gateway.config.model_settings import ModelSettings, SamplingSettings
from gateway.config.settings import (
    GatewaySettings,
    MemorySettings,
    QueueSettings,
    Settings,
    WorkersSettings,
)
from gateway.config.tables import SECTIONS, Changes, changes, keys_of

MODEL = ModelSettings(path="demo")
OTHER = {
    str: "other",
    int: 7,
    float: 7.5,
    bool: True,
    tuple: ("other",),
    type(None): "other",
    dict: {"a": 1},
    SamplingSettings: SamplingSettings(top_k=7),
}


def test_nothing() -> None:
    old = Settings(models={"a": MODEL})
    assert not changes(old, Settings(models={"a": ModelSettings(path="demo")}))


def test_models() -> None:
    old = Settings(models={"gone": MODEL, "same": MODEL, "changed": MODEL})
    new = Settings(
        models={
            "new": MODEL,
            "changed": ModelSettings(path="demo", priority=1, aliases=("x",)),
            "same": MODEL,
        }
    )
    assert changes(old, new) == Changes(
        added=("new",), removed=("gone",), changed={"changed": ("aliases", "priority")}
    )


def test_changes_split_into_live_and_restart() -> None:
    new = Settings(
        gateway=GatewaySettings(host="::1", port=1, state_dir="/s", drain_s=1.0, allow=("/m",)),
        memory=MemorySettings(budget="50%"),
        workers=WorkersSettings(spare=0, stall_timeout_s=1.0),
        queue=QueueSettings(depth=1),
    )
    assert changes(Settings(), new) == Changes(
        live=(
            "gateway.drain_s",
            "gateway.allow",
            "memory.budget",
            "workers.spare",
            "workers.stall_timeout_s",
            "queue.depth",
        ),
        restart=("gateway.host", "gateway.port", "gateway.state_dir"),
    )


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table in SECTIONS for name in keys_of(SECTIONS[table])]
)
def test_no_key_is_overlooked(table: str, name: str) -> None:
    section = getattr(Settings(), table)
    current = getattr(section, name)
    other = not current if isinstance(current, bool) else OTHER[type(current)]
    new = Settings(**{table: msgspec.structs.replace(section, **{name: other})})
    found = changes(Settings(), new)
    assert (*found.live, *found.restart) == (f"{table}.{name}",)


@pytest.mark.parametrize("name", keys_of(ModelSettings))
def test_no_key_of_a_model_is_overlooked(name: str) -> None:
    current = getattr(MODEL, name)
    other = not current if isinstance(current, bool) else OTHER[type(current)]
    new = Settings(models={"a": msgspec.structs.replace(MODEL, **{name: other})})
    assert changes(Settings(models={"a": MODEL}), new) == Changes(changed={"a": (name,)})
