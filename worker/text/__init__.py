"""From the tokens of a model to text, reasoning and tool calls; from conversations to prompts."""
