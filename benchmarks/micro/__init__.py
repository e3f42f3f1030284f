"""What single parts cost: CPU microseconds, and multiples of a yardstick that is measured in the same run."""
