"""The prompt cache's tier on disk: computed prompts, shared by all processes of a gateway.

`store` is for callers. `index` has a row in SQLite for each block, and `payloads` a file. `home`
has the folder of both, and removes its damaged and abandoned parts.
"""
