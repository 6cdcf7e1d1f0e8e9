"""Getting models from the Hugging Face hub, by a process of its own for each."""
