"""What is done to a model before or after it is wrapped, whatever the strategy."""
