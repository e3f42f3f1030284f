"""What a shutdown of a machine would do to the pods of its node, as `gracectl agent --simulate-shutdown` shows it."""
