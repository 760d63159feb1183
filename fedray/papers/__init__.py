"""The papers as a user of fedray: variants of their methods, curvature at their minima."""
