"""Floor 4: what can end the instance behind a node."""
