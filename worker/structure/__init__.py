"""Constraints of answers: compiled beside the engine, and masks over the choice of each token."""
