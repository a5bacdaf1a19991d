"""A run's folder: what `experiment` writes and `report` reads, and nobody else knows."""
