"""Sources of notices that a machine will go."""
