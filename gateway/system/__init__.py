"""What the operating system and the event loop give: threads, tasks, limits, boots."""
