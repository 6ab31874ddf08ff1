"""What is asked of a run: one folder for each question, found through entry points."""
