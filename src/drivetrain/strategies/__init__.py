"""One folder a way of training: `options.py` (no torch, read by the launcher) and `strategy.py` (read by the ranks)."""
