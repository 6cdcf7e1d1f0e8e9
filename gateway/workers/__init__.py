"""Processes that compute: workers, the ranks of a model, and the hosts they run on."""
