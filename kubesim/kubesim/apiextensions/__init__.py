"""Custom resources: their definitions, what their schemas let in, and when they are served."""
