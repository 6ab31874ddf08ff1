"""A tracer's calls on the profile's clock, each in the stage that made it."""
