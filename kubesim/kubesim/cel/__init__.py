"""The Common Expression Language as Kubernetes speaks it (decision 0008): rules of custom resources, match conditions.

Knows schemas, and nothing of definitions, requests or webhooks.
"""
