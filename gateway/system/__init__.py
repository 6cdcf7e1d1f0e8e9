"""What every room needs: clocks, threads, tasks, logs, the state folder, TLS, memory readings."""
