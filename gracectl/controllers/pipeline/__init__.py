"""The pipeline of a termination: its steps' interface, its state, and the registry of those in progress."""
