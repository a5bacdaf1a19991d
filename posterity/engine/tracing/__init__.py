"""Functions of tensors as flat lists of operators."""
