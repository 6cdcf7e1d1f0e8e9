"""A client's connection: its bounds, its caller, its bodies, answers and records."""
