"""Node disruption budgets: admission of node deletions, and the status of the budgets."""
