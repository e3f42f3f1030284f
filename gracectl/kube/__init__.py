"""Floor 2: the Kubernetes API: credentials, requests, typed errors, list and watch, caches, events."""
