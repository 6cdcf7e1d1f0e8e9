"""How the next tokens of a batch are chosen, each by what its own request asked for."""
