"""Where clients come in: connections, their bounds and their deadlines."""
