"""The controllers: what changes a cluster."""
