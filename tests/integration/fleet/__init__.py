"""One fleet for all of these, ended after the last: a package is a scope of fixtures."""
