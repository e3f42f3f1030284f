"""Pure decisions: given an immutable view of a node and an instant, what may happen now, and what blocks the rest."""
