"""Opens models as ONNX masters: export, check, normalise, digest.

Read in this order: `source` (file or factory) and `fingerprint` (what it was made from), `opened`
(the entry), `pytorch_source` and `export` (a factory becomes a file), `stored` (what lands on disk)
with `reading`, `opset6`, `admission` (what is refused), `normalise`, `dimensions`, `interface`,
`integers` and `digest` (the identity of the computation).
"""
