"""Reads the calls of tools in the text of an answer, by the form of each family."""
