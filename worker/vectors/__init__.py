"""Vectors and scores of texts, which are tokenized, batched by length, and computed in one pass."""
