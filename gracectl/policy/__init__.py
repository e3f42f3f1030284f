"""Floor 1: pure decisions. Given an immutable view of a node and an instant, what may happen now, and why not more."""
