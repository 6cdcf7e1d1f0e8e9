"""What the operator asked for: file, environment and flags, validated as one."""
