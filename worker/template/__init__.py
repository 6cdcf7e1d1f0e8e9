"""Turns conversations into prompts, by the chat templates of models."""
