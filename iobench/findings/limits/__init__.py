"""How much of what its storage can do a run used."""
