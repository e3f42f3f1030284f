"""Credentials for an API server, read from a kubeconfig or the service account of a pod."""
