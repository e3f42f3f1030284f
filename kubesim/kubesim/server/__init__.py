"""The API server itself: storage, reads, writes, deletions, watches. Knows no kind by name."""
