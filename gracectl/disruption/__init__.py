"""Node disruption budgets: who may end a node now, written down so that all replicas agree; and how many are left."""
