"""What every other layer stands on: errors, optional packages, the plugin registry, trees of leaves. No torch."""
