"""The built-in kinds: what each does differently from all others."""
