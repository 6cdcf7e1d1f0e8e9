"""A conversation to token ids, by the model's chat template."""
