"""How torch computes in every process: its arrays, precision, programs and threads."""
