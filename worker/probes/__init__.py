"""What `worker.probe` measures, each in a file of its own."""
