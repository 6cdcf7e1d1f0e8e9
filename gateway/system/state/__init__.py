"""What is kept in the state folder, and in which form."""
