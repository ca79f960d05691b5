"""What the benchmark house promises, tested on real processes and stores."""
