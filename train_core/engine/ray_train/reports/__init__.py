"""The reports of a training function: from each rank's folder to one committed checkpoint."""
