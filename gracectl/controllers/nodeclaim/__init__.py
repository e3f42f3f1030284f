"""The node claim termination controller."""
