"""Start of a worker process: `python -P .../worker/__main__.py --endpoint ... --parent ...`.

With `--guard` the process runs the server of a command. With `--follow` it computes as a rank other
than 0. With the name of an errand it runs the errand and ends. With `device` it prints the device
and ends.

The gateway starts this file by its path, because the search path can't be trusted: a folder called
`worker` in the current directory or on PYTHONPATH must not shadow this package. `worker` and
`protocol` are imported from beside this file. All other packages come from the interpreter's
environment, which may not be the gateway's.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

# For each errand the file of `worker/errands/` that has its function.
_ERRANDS: Final = {
    "examine": "models",
    "measure": "models",
    "compare": "models",
    "probe": "probe",
    "check": "check.conductor",
}


def _pin_package(name: str, root: Path) -> None:
    folder = root / name
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package {name} in {root}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bulkhead-worker")
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--parent", type=int, required=True, help="pid of the gateway")
    parser.add_argument("--incarnation", type=int, required=True)
    parser.add_argument("--spare", action="store_true", help="get ready without a model")
    return parser.parse_args()


def _pin_packages() -> None:
    _pin_our_packages()
    _choose_device()

    from worker.transformers import cache_import_structure

    cache_import_structure()


def _pin_our_packages() -> None:
    for package in ("protocol", "worker"):
        _pin_package(package, Path(__file__).resolve().parent.parent)


def _guard() -> None:
    parser = argparse.ArgumentParser(prog="bulkhead-worker")
    parser.add_argument("--guard", required=True, help="the mark of the command's processes")
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--parent", type=int, required=True, help="pid of the gateway")
    parser.add_argument("--incarnation", type=int, required=True)
    arguments = parser.parse_args()
    key = _ready_with_key(arguments.parent, _pin_our_packages)

    from worker.guard.loop import run

    run(arguments.endpoint, key, arguments.parent, arguments.incarnation, arguments.guard)


def _serve() -> None:
    arguments = _parse_arguments()
    key = _ready_with_key(arguments.parent)

    from worker.process.loop import run

    run(arguments.endpoint, key, arguments.parent, arguments.incarnation, spare=arguments.spare)


def _follow() -> None:
    parser = argparse.ArgumentParser(prog="bulkhead-worker")
    parser.add_argument("--follow", required=True, help="ZeroMQ address of rank 0")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--silence", type=float, required=True, help="seconds until it is lost")
    parser.add_argument(
        "--parent", type=int, required=True, help="pid of the gateway, or of `bulkhead remote`"
    )
    arguments = parser.parse_args()
    key = _ready_with_key(arguments.parent)

    from worker.process.follower import run

    run(arguments.follow, key, arguments.rank, arguments.silence, arguments.parent)


def _ready_with_key(parent_pid: int, pin: Callable[[], None] = _pin_packages) -> bytes:
    # Checked before the slow imports, so that an orphan ends at once.
    if os.getppid() != parent_pid:
        sys.exit(f"The gateway (pid {parent_pid}) is gone.")
    pin()

    from protocol.channel import KEY_BYTES

    key = sys.stdin.buffer.read(KEY_BYTES)
    if len(key) != KEY_BYTES:
        sys.exit("No key came on standard input: only a gateway can start a worker.")
    return key


def _run_errand(name: str) -> None:
    """Run the function that has the errand's name."""
    _pin_packages()

    from worker.errands import Errand

    # Made before the errand's module is imported, since its imports may print.
    errand = Errand()
    module = importlib.import_module(f"worker.errands.{_ERRANDS[name]}")
    getattr(module, name)(errand)


def _choose_device() -> None:
    """Compute on the processor if the variable says so. Called before mlx-lm is imported, which
    makes its stream for the device of that moment.
    """
    if os.environ.get("BULKHEAD_DEVICE") == "cpu":
        import mlx.core as mx

        mx.set_default_device(mx.cpu)


def _print_device() -> None:
    """Print the device as JSON, for the gateway, which never imports MLX."""
    _choose_device()
    import mlx.core as mx

    print(json.dumps(mx.device_info()))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["device"]:
            _print_device()
        case [errand] if errand in _ERRANDS:
            _run_errand(errand)
        case _ if "--follow" in sys.argv:
            _follow()
        case _ if "--guard" in sys.argv:
            _guard()
        case _:
            _serve()
