"""Deadlines that outlast a sleep of the machine."""
