"""gracectl ends Kubernetes nodes gracefully."""

__version__ = "0.2.0"
