"""Result tables, with and without published numbers."""
