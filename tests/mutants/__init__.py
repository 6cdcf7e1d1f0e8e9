"""Whether the tests of the policies notice when these are wrong: `python -m tests.mutants`."""
