"""What staging took and brought: files copied nearer before or beside a training."""
