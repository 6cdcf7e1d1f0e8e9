"""The language of the gateway and its workers: messages, their encoding, and the channel."""
