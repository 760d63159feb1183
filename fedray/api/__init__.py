"""What `import fedray` offers beside the contract of plug-ins: one run, a sweep, and finished work."""
