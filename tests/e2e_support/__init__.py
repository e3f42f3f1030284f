"""What the stories of tests/e2e share: a cluster (any), its kubelet, a controller process, and eyes on all of it."""
