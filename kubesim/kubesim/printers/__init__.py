"""Answers in the shape of tables, as kubectl shows them."""
