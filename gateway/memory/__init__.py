"""What processes and the machine hold."""
