"""What the stories of tests/e2e share: a cluster (any), its kubelet, a controller process, and watches of all of it."""
