"""The gateway's process, from its start to its end or an upgrade."""
