"""Cached prompts: computed blocks of prompts, for other prompts that begin alike."""
