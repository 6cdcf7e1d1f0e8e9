"""Bulkhead beside raw mlx-lm and mlx_lm.server: same model, same machine, same run."""
