"""What tests of several packages share: builders of small objects and stand-ins for clusters."""
