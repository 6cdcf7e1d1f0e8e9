"""The choice of a batch's next tokens, of each row by the settings of its own request."""
