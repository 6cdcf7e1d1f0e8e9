"""POST /v1/messages: Anthropic's bodies, and how its answers are written."""
