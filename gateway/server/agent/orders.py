"""What a gateway may have started here: the worker's program of this installation, and no other.

Its words go to the process one by one, never through a shell.
"""

from __future__ import annotations

from typing import Final

from gateway.workers.agent_bodies import OrderBody

# What the collectives of MLX and NCCL read. Others choose files, libraries or programs.
ENVIRONMENT: Final = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "MLX_RANK",
        "MLX_RING_VERBOSE",
        "MLX_WORLD_SIZE",
        "NCCL_DEBUG",
        "NCCL_HOST_IP",
        "NCCL_IB_DISABLE",
        "NCCL_IB_HCA",
        "NCCL_NVLS_ENABLE",
        "NCCL_P2P_DISABLE",
        "NCCL_PORT",
        "NCCL_SHM_DISABLE",
        "NCCL_SOCKET_IFNAME",
    }
)
# Whom a worker must not outlive is said by the agent. Options may be shortened.
_PARENT: Final = "--parent"
_SHORTEST_OPTION: Final = 3


def complaint(order: OrderBody) -> str | None:
    """Why it can't be started, as the end of a sentence."""
    for each in order.arguments:
        if "\0" in each:
            return "an argument has a zero byte"
        option = each.partition("=")[0]
        if len(option) >= _SHORTEST_OPTION and _PARENT.startswith(option):
            return f"{option} is the agent's to say"
    for name, value in order.environment.items():
        if name not in ENVIRONMENT:
            return f"the variable {name!r} may not be set from elsewhere"
        if "\0" in value:
            return f"the variable {name} has a zero byte"
    return None
