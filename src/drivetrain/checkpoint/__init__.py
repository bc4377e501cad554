"""What goes to disk and comes back."""
