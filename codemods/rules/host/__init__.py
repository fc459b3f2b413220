"""Rules DYN1xx: tensors read on the host."""
