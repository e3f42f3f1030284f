"""`gracectl drains`: NodeDrains and their progress."""
