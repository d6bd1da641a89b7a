"""Model versions in OCI registries, as ModelPack artifacts."""
