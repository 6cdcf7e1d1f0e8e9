"""The routes of Anthropic's API."""
