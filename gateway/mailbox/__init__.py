"""Answers that wait for their clients: stored, made in the background, safe from crashes."""
