"""What surrounds the API server: kubelets, scheduler, workload and disruption controllers, a cloud."""
