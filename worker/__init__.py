"""The worker, a process that holds one model. All code that touches MLX is in this package."""
