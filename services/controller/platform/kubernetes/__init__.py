"""Kubernetes as a source of nodes, and a place for builds and servers of external models.

`nodes.py` watches Node and RayService objects and gives pools; `jobs.py` runs build tasks as
Jobs; `servers.py` runs external models as Deployments. What each needs to know of an object is in
small pure modules beside them. All of it is imported only where Kubernetes is switched on: nothing
else needs lightkube.
"""
