"""Errors, and MLX's memory, for all other rooms of a worker."""
