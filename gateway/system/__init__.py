"""Clocks, threads, tasks, logs, the state folder, TLS and memory readings, for every room."""
