"""One page about runs: numbers, curves, images. Reads run directories, and nothing else."""
