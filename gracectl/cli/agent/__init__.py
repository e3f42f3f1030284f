"""`gracectl agent`: the agent of a node, and rehearsals of a shutdown."""
