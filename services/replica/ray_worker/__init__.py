"""The processes of Ray that replicas run in: what they have imported, and how they start."""
