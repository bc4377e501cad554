"""Numerics of a run as data, and the two places that apply it: the forward pass and the optimizer step."""
