"""What an expression is, and what code may do: facts that transforms and rules ask for."""
