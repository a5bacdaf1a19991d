"""Which engine and which kernels a run uses: measured at its start."""
