"""Read-only views of a cluster for commands: its objects, their status, forecasts."""
