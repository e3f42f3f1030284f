"""Floor 4: the controllers: terminations of nodes and of their claims, what starts them, the finalizer keeper."""
