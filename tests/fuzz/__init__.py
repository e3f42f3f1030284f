"""Fuzzing of every decoder of foreign bytes: `make fuzz SECONDS=60`, and a few examples each in the ordinary suite."""
