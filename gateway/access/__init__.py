"""Who may ask for what: callers, API keys, their limits, and what was used under them."""
