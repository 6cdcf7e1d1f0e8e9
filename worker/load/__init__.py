"""A model's folder to a model in memory."""
