"""What a worker's process does for `doctor` instead of serving."""
