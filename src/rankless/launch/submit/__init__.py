"""Submit training runs to a cluster with Slurm, Kubernetes or Ray."""
