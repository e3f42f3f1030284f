"""Floor 4: the controllers: node termination and the finalizer keeper."""
