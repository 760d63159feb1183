"""Tables, figures, comparisons and reports, made from MLflow."""
