"""What is told to others about requests, where somebody wants that."""
