"""A full replica on every rank; gradients are averaged during backward."""
