"""All checks, in the order in which they are made."""

from __future__ import annotations

from typing import Final

from gateway.doctor import models, throughput
from gateway.doctor.files import (
    look_at_discovery,
    look_at_disk,
    look_at_folder,
    look_at_model_cache,
    look_at_secrets,
    look_at_socket_path,
)
from gateway.doctor.finding import Check
from gateway.doctor.gateway import (
    look_at_configuration,
    look_at_configuration_in_force,
    look_at_gateway,
    look_at_leftovers,
    look_at_port,
    look_at_starts,
    look_at_version,
    look_at_workers,
)
from gateway.doctor.machine import (
    look_at_clock,
    look_at_device,
    look_at_memory,
    look_at_open_files,
    look_at_packages,
    look_at_python,
    look_at_swap,
    look_at_wired_limit,
)
from gateway.doctor.memory_check import NAME, MemoryCheck
from gateway.doctor.network import look_at_hosts, look_at_network
from gateway.doctor.service import look_at_service

CHECKS: Final = (
    Check("configuration", look_at_configuration),
    Check("python", look_at_python),
    Check("packages", look_at_packages),
    Check("device", look_at_device, deadline_s=40.0),
    Check("wired limit", look_at_wired_limit),
    Check("memory", look_at_memory, deadline_s=40.0),
    Check("swap", look_at_swap),
    Check("clock", look_at_clock),
    Check("state folder", look_at_folder),
    Check("secrets", look_at_secrets),
    Check("disk", look_at_disk),
    Check("socket path", look_at_socket_path),
    Check("open files", look_at_open_files),
    Check("network", look_at_network),
    # For each of them; one that is out of reach takes its deadline.
    Check("hosts", look_at_hosts, deadline_s=30.0),
    Check("gateway", look_at_gateway),
    Check("starts", look_at_starts),
    Check("port", look_at_port),
    Check("version", look_at_version),
    Check("in force", look_at_configuration_in_force),
    Check("workers", look_at_workers),
    Check("leftovers", look_at_leftovers),
    Check("service", look_at_service, deadline_s=60.0),
    Check("model cache", look_at_model_cache),
    Check("discovery", look_at_discovery),
    Check("model", models.look_at_models, models.DEADLINE_S),
)
# Only if they are asked for: the first uses the gateway, the other memory and time.
THROUGHPUT: Final = Check("throughput", throughput.look_at_throughput, throughput.DEADLINE_S)


def memory_check(memory: MemoryCheck) -> Check:
    return Check(NAME, memory.look, deadline_s=60.0)
