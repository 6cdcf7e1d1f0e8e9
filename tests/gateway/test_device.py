"""The probe for the device's memory: run once, and kept until the next boot."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.boot import present_boot
from gateway.memory import device
from gateway.memory.device import DeviceRecord, recommended_working_set_bytes
from gateway.memory.stranded_record import StrandedRecord, read_stranded, write_stranded


def test_a_machine_without_a_recommendation(tmp_path: Path) -> None:
    record = tmp_path / "device.json"
    assert recommended_working_set_bytes(record) is None
    known = msgspec.json.decode(record.read_bytes(), type=DeviceRecord)
    assert known.boot == present_boot()


def test_it_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text("print('{\"max_recommended_working_set_size\": 72}')")
    monkeypatch.setattr(device, "_PROBE", probe)
    record = tmp_path / "device.json"
    assert recommended_working_set_bytes(record) == 72
    probe.write_text("raise SystemExit(1)")
    assert recommended_working_set_bytes(record) == 72
    record.write_bytes(msgspec.json.encode(DeviceRecord("another boot", "", 5)))
    assert recommended_working_set_bytes(record) is None
    assert "can't be read" in caplog.text
    probe.write_text("print('no JSON')")
    assert recommended_working_set_bytes(record) is None


def test_what_is_stranded_survives_a_gateway_and_not_a_boot(tmp_path: Path) -> None:
    record = tmp_path / "stranded.json"
    assert read_stranded(record) == StrandedRecord()
    write_stranded(record, StrandedRecord(7, 1000))
    assert read_stranded(record) == StrandedRecord(7, 1000)
    record.write_bytes(record.read_bytes().replace(present_boot().encode(), b"another boot"))
    assert read_stranded(record) == StrandedRecord()
    record.write_bytes(b"{")
    assert read_stranded(record) == StrandedRecord()
