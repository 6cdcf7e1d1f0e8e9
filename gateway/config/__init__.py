"""The configuration: file, environment and flags, validated together."""
