"""What a worker's process is: started, told apart, heard, and ended."""
