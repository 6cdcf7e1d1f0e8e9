"""Computed blocks of prompts, kept for other prompts that begin alike."""
