"""The admission server: what an API server asks before it creates, changes or deletes, and its answers."""
