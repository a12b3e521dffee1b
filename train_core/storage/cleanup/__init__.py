"""What may be deleted, and the deleting."""
