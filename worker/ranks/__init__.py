"""One model over several processes: rank 0 decides and tells, the others follow."""
