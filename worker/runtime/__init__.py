"""The life of a model on the engine's thread, from the load to the end."""
