"""All of Ollama's routes."""

from __future__ import annotations

from gateway.http.ollama import elsewhere, models, route, vectors

routes = [*route.routes, *models.routes, *vectors.routes, *elsewhere.routes]
