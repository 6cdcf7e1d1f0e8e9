"""Why an answer began late, and what of its prompt was new."""
