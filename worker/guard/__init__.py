"""The guard: a worker that runs the server of a command, and ends with all its processes."""
