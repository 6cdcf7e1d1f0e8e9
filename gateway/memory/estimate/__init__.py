"""What a model will take, from its files and without MLX."""
