"""What a host keeps on its disk between processes, and within which bounds."""
