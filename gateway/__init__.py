"""The process that speaks HTTP and keeps the workers. It never imports MLX."""
