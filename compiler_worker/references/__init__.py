"""What engines are compared with, and whether it can be trusted."""
