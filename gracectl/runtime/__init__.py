"""Floor 2: work queue, clock, rate limiter, backoff, supervised tasks. Knows nothing of Kubernetes."""
