"""Submission of a training to a cluster with Slurm, Kubernetes or Ray."""
