"""What a run leaves on disk: settings, directory, history, checkpoints."""
