"""`gracectl uninstall`: removes everything of gracectl from a cluster."""
