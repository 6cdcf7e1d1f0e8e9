"""Answers that wait for their clients: stored, made in the background, kept across crashes."""
