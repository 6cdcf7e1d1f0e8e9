"""Loads a model from its folder into memory."""
