"""The gateway's own process, by the names that Prometheus' libraries have for such things."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def process() -> Iterator[Metric]:
    """Read just now; it may take some milliseconds."""
    own = psutil.Process()
    times, memory = own.cpu_times(), own.memory_info()
    yield CounterMetricFamily(
        "process_cpu_seconds",
        "Processor time of the gateway, in user and system mode.",
        value=times.user + times.system,
    )
    gauges = {
        "process_resident_memory_bytes": ("Resident memory of the gateway.", memory.rss),
        "process_virtual_memory_bytes": ("Virtual memory of the gateway.", memory.vms),
        "process_open_fds": ("Open file descriptors of the gateway.", own.num_fds()),
        "process_max_fds": (
            "How many it may have.",
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
        "process_start_time_seconds": ("When it started, as Unix time.", own.create_time()),
    }
    for name, (about, value) in gauges.items():
        yield GaugeMetricFamily(name, about, value=value)
