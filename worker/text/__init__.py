"""Turns a model's tokens into text, reasoning and tool calls."""
