"""What every package needs: argument checks, whole files, random streams, progress, text."""
