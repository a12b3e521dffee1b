"""What a training and its validations measure."""
