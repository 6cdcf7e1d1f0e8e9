"""An upgrade: this gateway is replaced, while its models stay loaded and its streams flow."""
