"""A model of Hugging Face's hub as a source: its files, what they say, its module."""
