"""The papers as a user of fedray: their claims, boards of their methods, curvature at their minima."""
