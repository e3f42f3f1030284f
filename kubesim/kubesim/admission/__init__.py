"""Dynamic admission: webhooks that are asked before something is written or deleted."""
