"""Application A5: statistical downscaling of temperature, tiers 1 and 2."""
