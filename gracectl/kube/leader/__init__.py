"""Leader election by a Lease, and takeover of the Lease of another process."""
