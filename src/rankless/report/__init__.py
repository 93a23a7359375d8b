"""The report of one or more runs, created from their run directories alone."""
