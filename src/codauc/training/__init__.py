"""How `codauc train` works: recipe, loop, validation, checkpoints and resuming."""
