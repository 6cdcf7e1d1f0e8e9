"""The environment of workers."""

from __future__ import annotations

import pytest

from gateway.system.memory import BackEnd
from gateway.workers import process as program


@pytest.mark.parametrize(
    ("back_end", "gives_back"),
    [(BackEnd.CPU, True), (BackEnd.METAL, True), (BackEnd.CUDA, False)],
)
def test_large_buffers_are_given_back_at_once_but_where_weights_pass_through_them(
    back_end: BackEnd, gives_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "back_end", lambda: back_end)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    environment = program.worker_environment()
    assert ("MALLOC_MMAP_THRESHOLD_" in environment) is gives_back
    assert environment["HF_HUB_OFFLINE"] == "1"


PASSED = """
PATH HOME USER TMPDIR LANG LC_ALL TZ TERM VIRTUAL_ENV CONDA_PREFIX XDG_CACHE_HOME
PYTHONPATH PYTHONUNBUFFERED LD_LIBRARY_PATH LD_PRELOAD DYLD_LIBRARY_PATH MALLOC_ARENA_MAX
MALLOC_TRIM_THRESHOLD_ OMP_NUM_THREADS MLX_METAL_DEBUG MLX_CUDA_GRAPH_CACHE_SIZE
METAL_DEVICE_WRAPPER_TYPE MTL_DEBUG_LAYER CUDA_VISIBLE_DEVICES CUDA_HOME NVIDIA_VISIBLE_DEVICES
NCCL_DEBUG NCCL_SOCKET_IFNAME HF_HOME HF_HUB_CACHE HF_ENDPOINT TRANSFORMERS_CACHE
TOKENIZERS_PARALLELISM SSL_CERT_FILE REQUESTS_CA_BUNDLE HTTPS_PROXY https_proxy NO_PROXY
BULKHEAD_DEVICE
"""
KEPT_BACK = """
BULKHEAD_ADMIN_KEY BULKHEAD_URL OTEL_EXPORTER_OTLP_HEADERS OTEL_EXPORTER_OTLP_ENDPOINT HF_TOKEN
HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HUGGINGFACE_TOKEN AWS_SECRET_ACCESS_KEY OPENAI_API_KEY
ANTHROPIC_API_KEY GITHUB_TOKEN SSH_AUTH_SOCK CONDA_TOKEN PYTHON_KEYRING_SECRET MLX_METAL_FAST_SYNCH
DATABASE_URL PATHS HOMEBREW_GITHUB_API_TOKEN
"""


def test_a_worker_has_what_it_computes_with_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PASSED.split(), *KEPT_BACK.split()):
        monkeypatch.setenv(name, f"of {name}")
    environment = program.worker_environment()
    assert {word: environment.get(word) for word in PASSED.split()} == {
        word: f"of {word}" for word in PASSED.split()
    }
    assert not set(KEPT_BACK.split()) & set(environment)
