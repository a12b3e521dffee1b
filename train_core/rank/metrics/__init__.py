"""The metrics of trainings and validations, and their figures."""
