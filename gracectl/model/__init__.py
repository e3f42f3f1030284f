"""Floor 0: slim typed views of Kubernetes objects, and the plain parsers they need. Pure: no I/O, no clock."""
