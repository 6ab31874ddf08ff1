"""Application A4: ensemble post-processing, ENS-10."""
