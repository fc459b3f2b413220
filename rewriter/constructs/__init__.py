"""One converter a file: each restructures a Python construct so that an operator of `forms` decides
at run time."""
