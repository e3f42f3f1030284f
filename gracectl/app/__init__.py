"""The composition roots: each builds a whole program from the settings and runs its parts as one."""
