"""Runs kept where users keep experiments: MLflow and Weights & Biases."""
