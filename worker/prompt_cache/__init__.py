"""What prompts were computed to, kept for those that begin alike."""
