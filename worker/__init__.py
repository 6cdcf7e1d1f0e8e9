"""One model in a process of its own. Everything that touches MLX is in here."""
