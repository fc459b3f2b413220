"""What the driver of a training step and what serves it say to each other."""

DRIVER = "__dynfix_step__"  # a builtin while dynrun runs; its methods: `dynrun.step_calls.Steps`
FALLS, CONTINUES, BREAKS, RETURNS, STOPS = range(5)  # STOPS: before the rest of an `if`
NOT_BOUND = "\0not bound"  # stands for a variable that the step has not bound
