"""Opens models as ONNX masters: export, check, normalise, digest.

Read in this order: `source` (file or factory), `opened` (the entry), `export` and
`pytorch_source` (a factory becomes a file), `reading` and `admission` (what is refused),
`normalise`, `stored` (what lands on disk), `digest` and `fingerprint` (two identities: of
the computation, and of what it was made from).
"""
