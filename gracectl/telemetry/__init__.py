"""Floor 2: logs, and later metrics and traces."""
