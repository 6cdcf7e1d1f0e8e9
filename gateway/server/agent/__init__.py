"""The agent: what starts, measures and ends ranks on this host for a gateway elsewhere."""
