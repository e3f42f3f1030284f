"""The built-in kinds and their strategies."""
