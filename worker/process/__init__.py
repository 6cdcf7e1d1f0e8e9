"""The main thread of a worker: it talks to the gateway, and never computes."""
