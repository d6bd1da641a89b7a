"""`smelt export`: models of the store in the layouts of other servers."""
