"""Components: from a section of a configuration to an object with typed options and an identity."""
