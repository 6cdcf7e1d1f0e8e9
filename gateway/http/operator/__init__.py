"""The routes of operators, of the page and of monitors."""
