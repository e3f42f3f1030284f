"""The view of the cluster that all controllers share: caches, informers, tracked objects."""
