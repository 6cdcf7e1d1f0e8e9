"""POST /v1/chat/completions: its bodies, and how its answers are written."""
