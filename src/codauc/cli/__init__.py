"""What can be typed: options and commands."""
