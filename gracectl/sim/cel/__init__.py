"""The Common Expression Language as Kubernetes speaks it, in rules of custom resources and in match conditions of webhooks
(decision 0008). Knows schemas and nothing of definitions, requests or webhooks."""
