"""What the gateway and its workers have to say: written in lines, rotated, and read again."""
