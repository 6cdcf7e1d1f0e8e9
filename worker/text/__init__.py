"""What a model wrote, told apart: text, reasoning and tool calls."""
