"""A worker's life: started, watched, ended, and its end noticed."""
