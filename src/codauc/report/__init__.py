"""Charts of results, and the pages of one run and of several."""
