"""`gracectl budgets`: what the budgets of nodes and pods allow."""
