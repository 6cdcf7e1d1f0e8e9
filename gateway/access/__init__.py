"""Callers and their rights: API keys, the limits of keys, and the usage under each."""
