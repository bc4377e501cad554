"""One file a hardware family, found by its file name."""
