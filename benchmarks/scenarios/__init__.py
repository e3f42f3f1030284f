"""What is measured: each scenario holds the budgets of the design against what it finds."""
