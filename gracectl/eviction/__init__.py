"""Floor 3: pods leave here: one serial lane per PodDisruptionBudget, a bounded crowd for pods without one."""
