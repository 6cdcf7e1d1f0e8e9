"""Guesses for the next tokens of rows, and the decision how many of them a step checks."""
