"""What the product assumes of the system's and MLX's memory, beside what is found here."""
