"""Experiment trackers: one file for each, found by name; `base` holds their interface and the hub that feeds them."""
