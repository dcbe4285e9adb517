"""`python -m retort ARGUMENT...`: the command `retort`, of this Python."""
from retort.program import main

main()
