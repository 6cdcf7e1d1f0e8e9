"""The page for people: static files, served as they lie in `static`."""
