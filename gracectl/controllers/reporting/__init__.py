"""What terminations report on objects: Events, conditions, protection."""
