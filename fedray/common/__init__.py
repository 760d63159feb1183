"""Code that any room may use: errors, random draws, files, addresses, this process."""
