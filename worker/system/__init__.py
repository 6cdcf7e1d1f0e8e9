"""What the rest of a worker stands on: its errors, and MLX's memory."""
