"""The report of runs: numbers, curves and images, computed only from their run directories."""
