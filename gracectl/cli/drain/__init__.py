"""`gracectl drain` and `gracectl terminate`: request a drain or a termination, and wait for it."""
