"""Code that any room may use: errors, random draws, components, the canonical local step."""
