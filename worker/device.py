"""Prints as JSON what MLX says of the device. Run as a process of its own: the one that asks never
imports MLX.
"""

from __future__ import annotations

import json

import mlx.core as mx

if __name__ == "__main__":
    print(json.dumps(mx.device_info()))
