"""A request's life between HTTP and a worker."""
