"""Build keys, plans and leases, and the code that engines are made by."""
