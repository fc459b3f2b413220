"""Rules DYN2xx: branches and loops on tensors."""
