"""The papers as a user of fedray: boards of their methods, curvature at their minima."""
