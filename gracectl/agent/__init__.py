"""The node agent: when the machine itself shuts down, its pods leave range by range before it goes."""
