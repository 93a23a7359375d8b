"""The report of runs: numbers, curves and images, made from run directories alone."""
