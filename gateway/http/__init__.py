"""The HTTP surface: a family of routes per file."""
