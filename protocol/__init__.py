"""What the gateway and a worker say to each other: messages, their encoding, and the channel."""
