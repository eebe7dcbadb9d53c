"""The paper's figures and tables: what is run for each, how it is run, and what it shows."""
