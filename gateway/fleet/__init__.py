"""All models together, and the workers that none has yet."""
