"""The Common Expression Language as Kubernetes speaks it in `x-kubernetes-validations` (decision 0008)."""
