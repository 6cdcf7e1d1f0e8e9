"""What is counted for /metrics: cheap on the way of a token, written down when somebody asks."""
