"""How long devices had nothing to do for want of the next batch."""
