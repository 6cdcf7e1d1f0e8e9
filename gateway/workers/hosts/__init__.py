"""The machines that ranks of a model run on: this one, and others by their agents."""
