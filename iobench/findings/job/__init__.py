"""What a job of several training processes waited for, step by step."""
