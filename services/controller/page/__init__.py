"""The page that the controller shows to a browser: what serves, what is built, what went wrong."""
