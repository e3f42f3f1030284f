"""`gracectl doctor`."""
