"""The objects a training loop holds: optimizer, schedule, metrics, random state, profile."""
