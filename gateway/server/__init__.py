"""The gateway's own life from its start to its end or successor, and the agent's."""
