"""Data of your own: pictures in folders, tables, data sets of Hugging Face."""
