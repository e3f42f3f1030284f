"""One trace per termination: spans of its steps, waves and pods."""
