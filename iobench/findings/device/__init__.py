"""How long devices had nothing to do for lack of the next batch."""
