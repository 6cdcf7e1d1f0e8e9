"""Requests that go on to another server: of a command, or an upstream."""
