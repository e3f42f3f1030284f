"""`gracectl ui`: the board, a page that shows terminations as they happen, and the server behind it."""
