"""Starting a run under Darshan: which runtime there is, whether it works here, what it is told."""
