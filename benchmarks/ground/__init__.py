"""Where it is measured: clusters, and what stands on them for a trial."""
