"""The node termination controller: its reconcile function, and a module per step."""
