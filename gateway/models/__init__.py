"""All models: the life cycle of each, and the checks of all."""
