"""/api: what clients of Ollama know, with its names, its lines of JSON and its errors."""
