"""The doctor: checks that find faults of an installation and their remedies, and change nothing."""
