"""The models of a gateway: the life cycle of each model, and all models together."""
