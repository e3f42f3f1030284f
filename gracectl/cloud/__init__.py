"""Instance providers."""
