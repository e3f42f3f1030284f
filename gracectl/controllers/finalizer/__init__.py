"""The finalizer controller, and the cleanup of the finalizer over a whole cluster."""
