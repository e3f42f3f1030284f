"""Kubernetes API: credentials, requests, typed errors, list and watch, caches, Events."""
