"""What the tests of kubesim share: callers of the API server, worlds around it, manifests."""
