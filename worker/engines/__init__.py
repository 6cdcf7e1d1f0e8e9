"""What turns sequences into tokens. Each engine lives on the one thread that owns MLX."""
