"""What several tests share: references, small data and runs, servers, and the fuzzing of inputs."""
