"""The account of memory: who holds how much, and who gets it next."""
