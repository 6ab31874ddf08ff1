"""Application A4: ensemble post-processing, ENS-10 and its small sister ens5mini."""
