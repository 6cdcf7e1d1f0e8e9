"""The HTTP surface: a room for the wire, for what APIs share, for each API, and for operators."""
