"""What lies in a run folder: names, documents, files."""
