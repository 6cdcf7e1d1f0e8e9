"""The models that lie on this machine's disks: found, described, offered, removed."""
