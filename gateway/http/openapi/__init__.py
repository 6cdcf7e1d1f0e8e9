"""/openapi.json: what is declared beside each route, and the document that is made of it."""
