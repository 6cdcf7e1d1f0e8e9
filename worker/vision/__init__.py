"""Models that look at pictures, by mlx-vlm: an extra, so nothing here is imported without need."""
