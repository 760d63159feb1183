"""A sweep as a deposit for a repository such as Zenodo."""
