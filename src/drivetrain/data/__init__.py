"""Data: which rank sees which sample, in what order, on what device, and where in the epoch a loader stands."""
