"""How much energy a run took, and how much of it while the training loop waited."""
