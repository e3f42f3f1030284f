"""Node agent: terminates the pods of a machine in order when it shuts down."""
