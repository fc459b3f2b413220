"""What is done to graphs of torch before and around AOTAutograd."""
