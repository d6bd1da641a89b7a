"""Code for the largest sizes of each bucket, and weights that stay with the master."""
