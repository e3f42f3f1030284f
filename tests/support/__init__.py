"""What tests of several rooms share: builders of small objects and stand-ins for the world."""
