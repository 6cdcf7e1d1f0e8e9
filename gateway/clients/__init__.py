"""The settings of clients: what coding agents and editors must be told to use this gateway."""
