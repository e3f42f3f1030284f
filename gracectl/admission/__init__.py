"""Admission server: webhooks for nodes, NodeClaims and NodeDisruptionBudgets."""
