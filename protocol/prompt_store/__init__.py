"""The prompt cache's tier on disk: computed prompts, shared by all processes of a gateway.

`store` is for callers. `index` has a row for each block, in SQLite; `payloads` are the files;
`home` is the folder that has both, and removes damaged and abandoned parts of it.
"""
