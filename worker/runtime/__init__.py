"""What the engine's thread does with a model, from the load to the end."""
