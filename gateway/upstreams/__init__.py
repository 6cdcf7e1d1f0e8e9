"""Other servers of OpenAI's API, whose models are served here as well."""
