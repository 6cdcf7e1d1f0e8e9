"""A gateway that is replaced by another one, while its models stay loaded and its streams flow.

The present gateway starts its successor and lets it prove itself (`successor`), tells the workers
to move, and sends what it knows (`handover`); the successor goes on from that (`takeover`). What
clients have asked the old one for is computed under the new one from then on, and comes back to
the old one, which has their connections (`relay`, `guests`), until they are done. Then it ends, or
only stands in for the new one where somebody watches its process (`stand_in`).
"""
