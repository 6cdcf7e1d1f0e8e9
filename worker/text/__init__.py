"""Turns conversations into prompts, and a model's tokens into text, reasoning and tool calls."""
