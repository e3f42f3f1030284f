"""The embedded cluster: an API server in memory, its HTTP face, and the controllers and kubelets around it."""
