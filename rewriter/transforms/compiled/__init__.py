"""Forms that compiled code alone runs: `if torch.compiler.is_compiling(): …`."""
