"""Give a training to a cluster: a page for each of Slurm, Kubernetes and Ray, which start the ranks."""
