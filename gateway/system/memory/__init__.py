"""What processes, the machine and its GPU hold."""
