"""The report of one or more runs, with numbers, curves and images from their run directories alone."""
