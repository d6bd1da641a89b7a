"""The data port: frames and lent memory in, frames out."""
