"""Kubernetes as a source of nodes and a place for builds.

`nodes.py` watches Node and RayService objects and gives pools; `jobs.py` runs build tasks as
Jobs. What either needs to know of an object is in small pure modules beside them.
"""
