"""TLS by certificate files."""
