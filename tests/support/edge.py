"""The HTTP edge with times and bounds that a test can wait for, set from outside."""

from __future__ import annotations

from pathlib import Path

from tests.support.faults import sitecustomize


def shortened(
    folder: Path, *, seconds: float = 1.0, bodies_bytes: int = 4 << 20, files: int | None = None
) -> dict[str, str]:
    """An environment: so many seconds for each thing that a client does, so many bytes for all
    bodies, and so many descriptors for the gateway.
    """
    # Only the soft one: mlx-lm sets a hard limit of its own, which must not be a higher one.
    limit = "" if files is None else f"limit_files({files})"
    return sitecustomize(
        folder,
        f"""
        import sys
        def limit_files(most):
            import resource
            from gateway.system import process_limits
            process_limits.MOST_FILES = most
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if not in_worker() and {{"serve", "agent"}} & set(sys.orig_argv):
            {limit}
            from gateway.http.wire import connection_limits as limits
            for doing in limits.Doing:
                if doing is not limits.Doing.SERVED:
                    limits._ALLOWED_S[doing] = {seconds}
            limits.UNREAD_S = {seconds}
            limits.ALL_BODIES_BYTES = {bodies_bytes}
        """,
    )
