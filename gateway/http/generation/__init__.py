"""What the APIs share of a request for text: parameters, tools, pictures, the call of a model."""
