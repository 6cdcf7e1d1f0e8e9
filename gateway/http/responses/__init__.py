"""/v1/responses: OpenAI's Responses, their bodies, and how their answers are written."""
