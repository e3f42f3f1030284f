"""Independent verifier: watches the cluster from outside and finds violated budgets."""
