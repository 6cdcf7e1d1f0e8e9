"""Who may do what: API keys, their limits, and what was used under them."""
