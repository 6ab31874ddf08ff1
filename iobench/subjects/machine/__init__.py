"""What the machine was doing while the training loop waited, and else."""
