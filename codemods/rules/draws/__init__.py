"""Rules DYN7xx: random numbers and clocks."""
