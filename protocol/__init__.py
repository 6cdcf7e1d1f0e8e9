"""Shared by gateway and workers: messages, their encoding, the channel, files, stored prompts."""
