"""The choice of the next tokens of a batch. Each row follows the settings of its own request."""
