"""Commands of the optimum import path."""
