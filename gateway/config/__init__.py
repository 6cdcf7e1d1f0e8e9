"""The configuration: the values of file, environment and flags, validated together."""
