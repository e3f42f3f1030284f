"""What `gracectl uninstall` does, in order, and how it is told."""
