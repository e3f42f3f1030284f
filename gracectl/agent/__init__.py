"""What runs on a node itself: it hears that the machine goes down, and holds it back while pods end in order."""
