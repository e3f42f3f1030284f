"""What gracectl promises about speed, measured: each figure is a ratio of two things measured in the same run."""
