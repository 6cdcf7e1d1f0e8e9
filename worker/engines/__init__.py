"""Engines turn sequences into tokens, on the one thread that owns MLX."""
