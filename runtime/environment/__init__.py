"""What a process runs on: the version of torch, the machine's clocks and cores."""
