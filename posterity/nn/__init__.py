"""Networks as pure functions of their parameters: calling, layers that can be stacked, convolutions per client."""
