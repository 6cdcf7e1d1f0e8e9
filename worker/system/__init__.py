"""Errors and functions for MLX's memory, which all other rooms of a worker use."""
