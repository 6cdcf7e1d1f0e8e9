"""What is wrong with an installation, and what to do about it: it looks, and changes nothing."""
