"""The models of a gateway: the life of each, and all of them together."""
