"""The gateway's own life: its start, its configuration in force, its end."""
