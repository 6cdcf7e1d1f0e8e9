"""What an answer must match: compiled beside the engine, and a mask over its every token."""
