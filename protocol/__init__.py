"""What gateway and workers share: messages, their encoding, the channel, and files of models."""
