"""What threads computed for those that load: how many, what they read how often, and locks."""
