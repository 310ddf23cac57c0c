"""Jobs without plans: the command line that starts, moves, lists and drops them."""
