"""The last hour and the last day of the gateway: memory, answers, and what went wrong."""
