"""Work queue, clock, rate limiter, backoff, supervised components. Independent of Kubernetes."""
