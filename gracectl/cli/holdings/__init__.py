"""How budgets that stand are shown."""
