"""The errand that checks one model wholly, section after section."""
