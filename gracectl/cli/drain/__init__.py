"""`gracectl drain`: requests drains and waits for them."""
