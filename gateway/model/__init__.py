"""What a model is: its life cycle, and who acts on it."""
