"""Vectors and scores of texts: tokens in, batches by length, one pass through the model."""
