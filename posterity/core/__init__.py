"""Records and trees, monoids, Gaussian factors, keyed draws, the Method protocol and the ready-made passes."""
